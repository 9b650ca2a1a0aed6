// Tests of the functions that only the fake broker offers: losing a lock and rejecting a call.

import assert from "node:assert/strict";
import { test } from "node:test";

import { LeaseLostError, StoreRecoveringError } from "@leasehold/client";
import { FakeBroker } from "@leasehold/client/testing";

test("a revoked lock is granted to the next waiter", async () => {
  const fake = new FakeBroker();
  const [one, other] = [fake.client("one"), fake.client("other")];
  const reportedReasons: unknown[] = [];
  const lease = await one.acquire("a", { onLost: (lostLease) => reportedReasons.push(lostLease.lostReason) });
  const inner = await one.acquire("a", { under: lease });
  const next = other.acquire("a");
  assert.deepEqual([fake.holderCount("a"), fake.queueLength("a")], [1, 1]);
  assert.equal(fake.lose("a", "Revoked", "by hand"), 1);
  assert(!lease.isValid() && !inner.isValid() && lease.signal.aborted);
  assert.throws(() => {
    lease.check();
  }, /revoked: by hand/);
  assert((await next).fencingToken > lease.fencingToken);
  assert.deepEqual(reportedReasons, ["Revoked"]);
  await assert.rejects(lease.release(), LeaseLostError);
  await assert.rejects(one.acquire("b", { under: lease }), LeaseLostError);
  assert.equal(fake.holderCount("a"), 1);
  assert.equal(fake.lose("nobody has it"), 0);
});

test("refuse rejects the next acquire only", async () => {
  const fake = new FakeBroker();
  const client = await fake.client().connect();
  fake.refuse("a", new StoreRecoveringError("try again", { retryAfterMs: 50 }));
  await assert.rejects(client.acquire("a"), { code: "StoreRecovering", retryAfterMs: 50 });
  await (await client.acquire("a")).release();
});

test("the signal of using is aborted when the lock is lost", async () => {
  const fake = new FakeBroker();
  const work = fake.client().using("a", (_, signal) => {
    fake.lose("a");
    signal.throwIfAborted();
  });
  await assert.rejects(work, { code: "LeaseLost", reason: "StoreLost" });
});
