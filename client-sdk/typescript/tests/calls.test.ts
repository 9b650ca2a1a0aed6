// Tests of all calls of a client, with a real broker and with the fake broker.

import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";

import type { QueuePosition } from "@leasehold/client";
import {
  assertHeld,
  ClosedError,
  HeldError,
  InvalidError,
  LeaseLostError,
  LimitMismatchError,
  NotHeldError,
  UpgradeDeniedError,
  WaitTimeoutError,
} from "@leasehold/client";

import {
  acquireAndRelease,
  acquireFree,
  clientOf,
  sharedBroker,
  testBothBrokers,
  waitForQueueLength,
} from "./fixtures.js";

testBothBrokers("a lock is held until it is released", async (t, fixture) => {
  const [one, other] = [fixture.client(), fixture.client()];
  const lease = await one.acquire(t.name);
  assert(lease.isValid() && lease.remainingMs() > 1_000 && !lease.signal.aborted);
  assert.deepEqual(lease.locks, [`default/${t.name}`]);
  assert.equal(lease.fencingTokenOf(t.name), lease.fencingToken);
  assert.equal(lease.fencingTokenOf("another"), undefined);
  assert.equal(await other.tryAcquire(t.name), null);
  await lease.release();
  await lease.release();
  assert.deepEqual([lease.isValid(), lease.lostReason, lease.remainingMs()], [false, "Released", 0]);
  assert(!lease.signal.aborted, "the signal is not aborted by a release");
  const next = await acquireFree(other, t.name);
  assert(next.fencingToken > lease.fencingToken);
  await next.release();
});

testBothBrokers("await using releases the lock at the end of its block", async (t, fixture) => {
  const client = fixture.client();
  {
    await using lease = await client.acquire(t.name);
    assert.equal(await client.tryAcquire(t.name), null);
    assert(lease.isValid());
  }
  {
    await using nothing = await client.tryAcquire(t.name);
    assert(nothing !== null);
    await using busy = await client.tryAcquire(t.name);
    assert.equal(busy, null);
  }
  await acquireAndRelease(client, t.name);
});

testBothBrokers("an acquire without waiting is rejected with the holders", async (t, fixture) => {
  const [one, other] = [fixture.client({ owner: "worker-1" }), fixture.client()];
  await using lease = await one.acquire(t.name, { reason: "nightly work", labels: { team: "a" } });
  await assert.rejects(other.acquire(t.name, { waitMs: 0 }), (error) => {
    assert(error instanceof HeldError);
    const [holder] = error.holders;
    assert.deepEqual([holder?.leaseId, holder?.owner, holder?.reason], [lease.leaseId, "worker-1", "nightly work"]);
    return true;
  });
});

testBothBrokers("a wait that timed out is rejected and leaves the queue", async (t, fixture) => {
  const client = fixture.client();
  await using lease = await client.acquire(t.name);
  const startedAt = performance.now();
  await assert.rejects(client.acquire(t.name, { waitMs: 200 }), (error) => {
    assert(error instanceof WaitTimeoutError && error.holders[0]?.fencingToken === lease.fencingToken);
    return true;
  });
  assert(performance.now() - startedAt >= 190);
  await waitForQueueLength(client, t.name, 0);
});

testBothBrokers("waiters are granted in order and receive their queue positions", async (t, fixture) => {
  const [one, other] = [fixture.client(), fixture.client()];
  const lease = await one.acquire(t.name);
  const positions: QueuePosition[] = [];
  const first = one.acquire(t.name);
  await waitForQueueLength(one, t.name, 1);
  const second = other.acquire(t.name, { onQueue: (position) => positions.push(position) });
  await waitForQueueLength(one, t.name, 2);
  await lease.release();
  const firstLease = await first;
  // Queue positions are sent at most once a second.
  while (positions.at(-1)?.position !== 1) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.deepEqual([positions[0]?.position, positions[0]?.closure], [2, undefined]);
  await firstLease.release();
  const last = await second;
  assert(last.fencingToken > firstLease.fencingToken && firstLease.fencingToken > lease.fencingToken);
  await last.release();
});

test("a queue position and the state of a lock have the closure of the lock", async (t) => {
  const client = clientOf(t, (await sharedBroker()).url, { owner: "nightly-1" });
  const lease = await client.acquire(t.name, { ttlMs: 1_000, atLeastMs: 60_000, reason: "nightly run" });
  assert.equal((await client.get(t.name))?.closure, undefined);
  await lease.release();
  const positions: QueuePosition[] = [];
  const controller = new AbortController();
  const onQueue = (position: QueuePosition) => {
    positions.push(position);
    controller.abort();
  };
  await assert.rejects(client.acquire(t.name, { onQueue, signal: controller.signal }), { name: "AbortError" });
  for (const closure of [positions[0]?.closure, (await client.get(t.name))?.closure]) {
    assert.deepEqual([closure?.cause, closure?.owner, closure?.reason], ["AtLeast", "nightly-1", "nightly run"]);
    assert(closure !== undefined && closure.remainingMs > 0 && closure.remainingMs <= 60_000);
  }
});

testBothBrokers("callers follow a set limit until it is removed", async (t, fixture) => {
  const client = fixture.client();
  assert.equal(await client.setLimit(t.name, 2), null);
  const idleUsage = { limit: 2, used: 0, free: 2, isLimitSet: true };
  assert.deepEqual((await client.get(t.name))?.permitUsage, idleUsage, "the lock is idle");
  const leases = [await client.acquire(t.name, { permits: 1, limit: 5 }), await client.acquire(t.name, { permits: 1 })];
  assert.equal(await client.tryAcquire(t.name, { permits: 1, limit: 5 }), null);
  await assert.rejects(client.acquire(t.name, { permits: 3, limit: 5 }), LimitMismatchError);
  await assert.rejects(client.acquire(t.name, { shared: true }), LimitMismatchError);
  assert.equal(await client.setLimit(t.name, null), 2);
  const usage = { limit: 2, used: 2, free: 0, isLimitSet: false };
  assert.deepEqual((await client.get(t.name))?.permitUsage, usage, "the limit stays in use");
  await assert.rejects(client.acquire(t.name, { permits: 1, limit: 5 }), LimitMismatchError);
  await Promise.all(leases.map((lease) => lease.release()));
  assert.equal(await client.setLimit(t.name, null), null);
  assert.equal(await client.get(t.name), null);
  await using lease = await client.acquire(t.name, { permits: 3, limit: 5 });
  assert(lease.isValid());
});

testBothBrokers("a raised limit grants waiters, and a lowered one revokes no lease", async (t, fixture) => {
  const client = fixture.client();
  const one = await client.acquire(t.name, { permits: 2, limit: 2 });
  const pendingAcquire = client.acquire(t.name, { permits: 1, limit: 2 });
  await waitForQueueLength(client, t.name, 1);
  assert.equal(await client.setLimit(t.name, 3), 2);
  const other = await pendingAcquire;
  const tooWide = assert.rejects(client.acquire(t.name, { permits: 3, limit: 3 }), LimitMismatchError);
  await waitForQueueLength(client, t.name, 1);
  assert.equal(await client.setLimit({ name: t.name, namespace: "default" }, 1), 3);
  await tooWide;
  const usage = { limit: 1, used: 3, free: 0, isLimitSet: true };
  assert.deepEqual((await client.get(t.name))?.permitUsage, usage);
  await one.release();
  assert(other.isValid());
  assert.equal(await client.tryAcquire(t.name, { permits: 1, limit: 3 }), null);
  assert.equal(await client.setLimit(t.name, null), 1);
  const removedUsage = { limit: 1, used: 1, free: 0, isLimitSet: false };
  assert.deepEqual((await client.get(t.name))?.permitUsage, removedUsage);
  await other.release();
  await (await client.acquire(t.name, { permits: 3, limit: 3 })).release();
});

testBothBrokers("a limit is not set on a lock that is held in another mode", async (t, fixture) => {
  const client = fixture.client();
  for (const shared of [false, true]) {
    await using lease = await client.acquire(t.name, { shared });
    await assert.rejects(client.setLimit(t.name, 2), LimitMismatchError);
    assert(lease.isValid());
    assert.equal((await client.get(t.name))?.permitUsage, undefined);
  }
});

testBothBrokers("shared holders coexist, permits add up, several locks are all or none", async (t, fixture) => {
  const client = fixture.client();
  {
    await using first = await client.acquire(t.name, { shared: true });
    await using second = await client.acquire({ name: t.name, shared: true });
    assert.notEqual(first.leaseId, second.leaseId);
    assert.equal(await client.tryAcquire(t.name), null);
    await assert.rejects(client.acquire(t.name, { under: first }), UpgradeDeniedError);
  }
  const gpu = `${t.name}-gpu`;
  {
    await using threePermits = await client.acquire(gpu, { permits: 3, limit: 5 });
    assert(threePermits.isValid());
    assert.equal(await client.tryAcquire(gpu, { permits: 3, limit: 5 }), null);
    await using twoPermits = await client.acquire(gpu, { permits: 2 });
    assert(twoPermits.isValid());
    await assert.rejects(client.acquire(gpu, { permits: 1, limit: 6 }), LimitMismatchError);
  }
  const names = ["a", "b", "c"].map((one) => `${t.name}-${one}`);
  const [a = "", b = ""] = names;
  {
    await using held = await client.acquire(b);
    assert(held.isValid());
    assert.equal(await client.tryAcquireAll(names), null);
    await (await acquireFree(client, a)).release();
  }
  await using all = await client.acquireAll(names);
  assert.deepEqual(
    all.locks,
    names.map((name) => `default/${name}`),
  );
  for (const name of names) {
    assert(all.fencingTokenOf(name) !== undefined);
    assert.equal(await client.tryAcquire(name), null);
  }
});

testBothBrokers("a lock is re-entered, and each entry is released separately", async (t, fixture) => {
  const client = fixture.client();
  const outer = await client.acquire(t.name);
  const inner = await client.acquire(t.name, { under: outer });
  const added = await client.acquire(`${t.name}-added`, { under: outer });
  assert.deepEqual([inner.leaseId, inner.fencingToken], [outer.leaseId, outer.fencingToken]);
  assert.equal(added.leaseId, outer.leaseId);
  await outer.release();
  assert(!outer.isValid() && inner.isValid() && added.isValid());
  assert.equal(await client.tryAcquire(t.name), null);
  await inner.release();
  await added.release();
  await acquireAndRelease(client, t.name);
  await assert.rejects(client.acquire(t.name, { under: outer }), LeaseLostError);
});

testBothBrokers("an aborted acquire leaves the queue", async (t, fixture) => {
  const client = fixture.client();
  const lease = await client.acquire(t.name);
  const controller = new AbortController();
  const pendingAcquire = client.acquire(t.name, { signal: controller.signal });
  await waitForQueueLength(client, t.name, 1);
  controller.abort();
  await assert.rejects(pendingAcquire, { name: "AbortError" });
  await waitForQueueLength(client, t.name, 0);
  await assert.rejects(client.acquire(t.name, { signal: AbortSignal.abort("why") }), (why) => why === "why");
  await lease.release();
  await acquireAndRelease(client, t.name);
});

testBothBrokers("an error of onQueue cancels the acquire", async (t, fixture) => {
  const client = fixture.client();
  const lease = await client.acquire(t.name);
  const onQueue = () => {
    throw new RangeError("too far");
  };
  await assert.rejects(client.acquire(t.name, { onQueue }), RangeError);
  await waitForQueueLength(client, t.name, 0);
  await lease.release();
});

testBothBrokers("using and locked run functions while the lock is held", async (t, fixture) => {
  const client = fixture.client();
  const result = await client.using(t.name, async (lease, signal) => {
    assert.equal(await client.tryAcquire(t.name), null);
    assert.equal(assertHeld(t.name), lease);
    assert(!signal.aborted);
    assert.throws(() => assertHeld("another"), NotHeldError);
    return 42;
  });
  assert.equal(result, 42);
  assert.throws(() => assertHeld(t.name), NotHeldError);
  const failing = client.using([t.name, `${t.name}-b`], { waitMs: 0 }, () => {
    throw new RangeError("of the work");
  });
  await assert.rejects(failing, RangeError);
  const double = client.locked(
    (factor: number) => `${t.name}-${String(factor)}`,
    (factor: number) => factor * assertHeld(`${t.name}-${String(factor)}`).locks.length * 2,
  );
  assert.equal(await double(3), 6);
  await acquireAndRelease(client, t.name);
});

testBothBrokers("tryAcquire repeats its attempt", async (t, fixture) => {
  const client = fixture.client();
  const lease = await client.acquire(t.name);
  const pendingAttempts = client.tryAcquire(t.name, { attempts: 100, everyMs: 20 });
  assert.equal(await client.tryAcquire(t.name, { attempts: 2, everyMs: 1 }), null);
  await lease.release();
  const nextLease = await pendingAttempts;
  assert(nextLease !== null);
  await nextLease.release();
});

testBothBrokers("one candidate leads, and observers see the leader", async (t, fixture) => {
  const [one, other] = [fixture.client({ owner: "one" }), fixture.client({ owner: "other" })];
  const observer = other.elect(t.name).observe()[Symbol.asyncIterator]();
  assert.equal((await observer.next()).value, null);
  const lease = await one.elect(t.name, { reason: "to lead" }).campaign();
  const leader = (await observer.next()).value;
  assert.deepEqual([leader?.owner, leader?.reason], ["one", "to lead"]);
  const next = other.elect(t.name).campaign();
  await lease.release();
  const second = await next;
  assert.equal((await observer.next()).value?.leaseId, second.leaseId);
  await second.release();
  const cancelledObserver = one.elect(t.name).observe({ signal: AbortSignal.abort() });
  await assert.rejects(cancelledObserver.next(), { name: "AbortError" });
});

testBothBrokers("a shutdown releases all leases and fails pending calls", async (t, fixture) => {
  const [one, other] = [fixture.client(), fixture.client()];
  const lease = await one.acquire(t.name);
  const held = await other.acquire(`${t.name}-held`);
  const pendingAcquire = one.acquire(`${t.name}-held`);
  await waitForQueueLength(other, `${t.name}-held`, 1);
  const lost: unknown[] = [];
  lease.signal.addEventListener("abort", () => lost.push(lease.lostReason));
  await Promise.all([one.shutdown(), one.shutdown(), assert.rejects(pendingAcquire, ClosedError)]);
  assert.deepEqual([lost, lease.isValid()], [["Closed"], false]);
  await assert.rejects(lease.release(), LeaseLostError);
  await assert.rejects(one.acquire(t.name), ClosedError);
  await assert.rejects(one.get(t.name), ClosedError);
  await assert.rejects(one.setLimit(t.name, 1), ClosedError);
  await acquireAndRelease(other, t.name, 500);
  await waitForQueueLength(other, `${t.name}-held`, 0);
  await held.release();
});

testBothBrokers("an invalid acquire fails without a request", async (t, fixture) => {
  const client = fixture.client();
  await assert.rejects(client.acquireAll([]), InvalidError);
  await assert.rejects(client.acquire({ name: t.name, shared: true, permits: 1 }), InvalidError);
  await assert.rejects(client.acquire(t.name, { limit: 3 }), InvalidError);
  await assert.rejects(client.acquire(t.name, { ttlMs: -1 }), RangeError);
  await assert.rejects(client.acquire(t.name, { waitMs: NaN }), RangeError);
  await assert.rejects(client.acquire(undefined as unknown as string), TypeError);
  await assert.rejects(client.acquire(t.name, { labels: { team: 1 as unknown as string } }), TypeError);
  for (const limit of [0, -1, 1.5, NaN, undefined as unknown as number]) {
    await assert.rejects(client.setLimit(t.name, limit), InvalidError);
  }
  assert.equal(await client.get(t.name), null);
  await acquireAndRelease(client, t.name);
});

test("a rejected acquire does not affect other leases", async (t) => {
  const client = clientOf(t, (await sharedBroker()).url);
  await using lease = await client.acquire(t.name);
  for (const name of ["", "a\nb", "x".repeat(513)]) {
    await assert.rejects(client.acquire(name), InvalidError);
  }
  await assert.rejects(client.acquire("a", { permits: 2, limit: 1 }), InvalidError);
  await assert.rejects(client.acquireAll(["a", "a"]), InvalidError);
  await assert.rejects(client.acquire("a", { reason: "x".repeat(600) }), InvalidError);
  await assert.rejects(client.setLimit("a", 1_001), InvalidError);
  assert(lease.isValid());
});

test("the text of a lease contains no secret", async (t) => {
  const client = clientOf(t, (await sharedBroker()).url, { bearerToken: "canary" });
  await using lease = await client.acquire(t.name);
  const texts = [inspect(lease, { depth: 9, showHidden: true }), JSON.stringify(lease), inspect(client)];
  for (const text of texts) {
    assert.doesNotMatch(text, /canary|[0-9a-f]{8}-[0-9a-f]{4}-4/, "the text contains a lease token or a request id");
  }
  assert.match(inspect(lease), new RegExp(lease.leaseId));
  assert.deepEqual(Object.keys(lease), ["leaseId", "locks"]);
});
