// Tests of brokers and stores that are killed, paused or drained, without the loss of a lock.

import assert from "node:assert/strict";
import type { TestContext } from "node:test";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { StoreFullError } from "@leasehold/client";

import { acquireAndRelease, acquireFree, clientOf, waitForQueueLength, waitUntil } from "./fixtures.js";
import { Broker, Redis } from "./processes.js";
import { Proxy } from "./proxy.js";

const TTL_MS = 2_000;
/** Time after which the lease expires in the store, so that another caller can acquire the lock. */
const EXPIRY_MS = TTL_MS * 1.2 + 250;
/** TTL that allows a failover in time even on a busy machine. */
const LONG_TTL_MS = 5_000;
const LONG_EXPIRY_MS = LONG_TTL_MS * 1.2 + 250;

async function twoBrokers(t: TestContext): Promise<[Broker, Broker, string[]]> {
  const redis = await Redis.start(t);
  const [one, two] = [await Broker.start(t, redis.url), await Broker.start(t, redis.url)];
  return [one, two, [one.url, two.url]];
}

test("a killed broker does not cause the loss of a lease", async (t) => {
  const [one, , urls] = await twoBrokers(t);
  const client = clientOf(t, urls);
  const lease = await client.acquire("a", { ttlMs: LONG_TTL_MS });
  const inner = await client.acquire("a", { under: lease });
  await one.kill();
  await sleep(LONG_EXPIRY_MS + 500);
  assert(lease.isValid() && inner.isValid());
  await inner.release();
  await lease.release();
  const nextLease = await acquireFree(client, "a");
  assert(nextLease.fencingToken > lease.fencingToken);
});

test("the client fails over from a stalled broker", async (t) => {
  const [one, , urls] = await twoBrokers(t);
  const client = clientOf(t, urls);
  const lease = await client.acquire("a", { ttlMs: LONG_TTL_MS });
  one.program.pause();
  await sleep(LONG_EXPIRY_MS + 500);
  assert(lease.isValid(), String(lease.lostReason));
  await lease.release();
  await acquireAndRelease(client, "a");
  one.program.resume();
});

test("leases and pending acquires move from a draining broker", async (t) => {
  const [one, two, urls] = await twoBrokers(t);
  const [client, observer] = [clientOf(t, urls), clientOf(t, two.url)];
  const lease = await client.acquire("a", { ttlMs: TTL_MS });
  const pendingAcquire = client.acquire("a", { ttlMs: TTL_MS });
  await waitForQueueLength(observer, "a", 1);
  one.program.signal("SIGTERM");
  assert.equal(await one.program.waitForExit(), 0);
  await sleep(EXPIRY_MS);
  assert(lease.isValid());
  await waitForQueueLength(observer, "a", 1);
  await lease.release();
  const next = await pendingAcquire;
  assert(next.fencingToken > lease.fencingToken);
});

test("a waiter keeps its queue position when its broker is killed", async (t) => {
  const [one, two, urls] = await twoBrokers(t);
  const [client, other] = [clientOf(t, urls), clientOf(t, two.url)];
  const lease = await other.acquire("a");
  const first = client.acquire("a");
  await waitForQueueLength(other, "a", 1);
  let hasOvertaken = false;
  const second = other.acquire("a").then((lease) => {
    hasOvertaken = true;
    return lease;
  });
  await waitForQueueLength(other, "a", 2);
  await one.kill();
  // The other acquire shows that the client has moved to the second broker, where it has repeated the waiting call.
  await acquireAndRelease(client, "b");
  await lease.release();
  const firstLease = await first;
  assert(!hasOvertaken, "a later waiter was granted first");
  await firstLease.release();
  await (await second).release();
});

test("a release without a response is repeated at another broker", async (t) => {
  const [one, , urls] = await twoBrokers(t);
  const client = clientOf(t, urls);
  const lease = await client.acquire("a");
  one.program.pause();
  const released = lease.release();
  await one.kill();
  await released;
  await acquireFree(client, "a");
});

test("a partial release without a response is repeated at another broker", async (t) => {
  const [one, two] = await twoBrokers(t);
  const proxy = await Proxy.start(t, one.addr);
  const client = clientOf(t, [proxy.url, two.url]);
  const lease = await client.acquire("a", { ttlMs: TTL_MS });
  const added = await client.acquire("b", { under: lease });
  proxy.drop("toClient");
  const released = added.release();
  const { droppedBytes } = proxy;
  await proxy.waitUntil(() => proxy.droppedBytes > droppedBytes);
  proxy.rejectsConnections = true;
  proxy.resetConnections();
  await released;
  await sleep(EXPIRY_MS);
  assert(lease.isValid(), String(lease.lostReason));
  await acquireAndRelease(client, "b");
  await lease.release();
  await acquireAndRelease(client, "a");
});

test("a repeated acquire without a response returns the same grant", async (t) => {
  const [one, two] = await twoBrokers(t);
  const proxy = await Proxy.start(t, one.addr);
  const [client, observer] = [clientOf(t, [proxy.url, two.url]), clientOf(t, two.url)];
  await client.connect();
  proxy.drop("toClient");
  const call = client.acquire("a");
  await waitUntil(async () => (await observer.get("a")) !== null);
  const state = await observer.get("a");
  proxy.rejectsConnections = true;
  proxy.resetConnections();
  const lease = await call;
  assert.equal(lease.leaseId, state?.holders[0]?.leaseId, "not the grant whose response was dropped");
  assert.equal(lease.fencingToken, state?.lastFencingToken);
});

test("an acquire waits for an unreachable store", async (t) => {
  const redis = await Redis.start(t);
  const client = clientOf(t, (await Broker.start(t, redis.url)).url);
  const lease = await client.acquire("a", { ttlMs: 10_000 });
  redis.program.pause();
  let isGranted = false;
  const call = client.acquire("b").then((granted) => {
    isGranted = true;
    return granted;
  });
  await sleep(1_500);
  assert(!isGranted);
  redis.program.resume();
  await call;
  assert(lease.isValid());
});

test("a store without memory rejects acquires and renews leases", async (t) => {
  const redis = await Redis.start(t);
  const client = clientOf(t, (await Broker.start(t, redis.url)).url);
  const lease = await client.acquire("a", { ttlMs: TTL_MS });
  await redis.command("CONFIG", "SET", "maxmemory", "1");
  await assert.rejects(client.acquire("b"), (error) => {
    return error instanceof StoreFullError && Number(error.retryAfterMs) > 0;
  });
  await sleep(EXPIRY_MS);
  assert(lease.isValid());
  await lease.release();
});
