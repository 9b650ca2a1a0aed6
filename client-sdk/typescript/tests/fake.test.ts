// What the fake adds for tests of code that uses locks.

import assert from "node:assert/strict";
import { test } from "node:test";

import { LeaseLostError, StoreRecoveringError } from "@leasehold/client";
import { FakeBroker } from "@leasehold/client/testing";

test("a lock is taken away, and the next in line has it", async () => {
  const fake = new FakeBroker();
  const [one, other] = [fake.client("one"), fake.client("other")];
  const told: unknown[] = [];
  const lease = await one.acquire("a", { onLost: (lost) => told.push(lost.lostReason) });
  const inner = await one.acquire("a", { under: lease });
  const next = other.acquire("a");
  assert.deepEqual([fake.holderCount("a"), fake.queueLength("a")], [1, 1]);
  assert.equal(fake.lose("a", "Revoked", "by hand"), 1);
  assert(!lease.isValid() && !inner.isValid() && lease.signal.aborted);
  assert.throws(() => {
    lease.check();
  }, /revoked: by hand/);
  assert((await next).fencingToken > lease.fencingToken);
  assert.deepEqual(told, ["Revoked"]);
  await assert.rejects(lease.release(), LeaseLostError);
  await assert.rejects(one.acquire("b", { under: lease }), LeaseLostError);
  assert.equal(fake.holderCount("a"), 1);
  assert.equal(fake.lose("nobody has it"), 0);
});

test("a call is answered with an error, once", async () => {
  const fake = new FakeBroker();
  const client = await fake.client().connect();
  fake.refuse("a", new StoreRecoveringError("try again", { retryAfterMs: 50 }));
  await assert.rejects(client.acquire("a"), { code: "StoreRecovering", retryAfterMs: 50 });
  await (await client.acquire("a")).release();
});

test("work is told of a loss", async () => {
  const fake = new FakeBroker();
  const work = fake.client().using("a", (_, signal) => {
    fake.lose("a");
    signal.throwIfAborted();
  });
  await assert.rejects(work, { code: "LeaseLost", reason: "StoreLost" });
});
