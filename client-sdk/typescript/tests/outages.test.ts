// Brokers and stores that die, stop or drain, and cost no lock.

import assert from "node:assert/strict";
import type { TestContext } from "node:test";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { StoreFullError } from "@leasehold/client";

import { Broker, Redis } from "./processes.js";
import { Proxy } from "./proxy.js";
import { clientOf, free, inLine, takes, until } from "./site.js";

const TTL_MS = 2_000;
/** When the store gives the lock to somebody else. */
const EXPIRY_MS = TTL_MS * 1.2 + 250;
/** Where another broker is to be found in time, on a busy machine, too. */
const LONG_TTL_MS = 5_000;
const LONG_EXPIRY_MS = LONG_TTL_MS * 1.2 + 250;

async function twoBrokers(t: TestContext): Promise<[Broker, Broker, string[]]> {
  const redis = await Redis.start(t);
  const [one, two] = [await Broker.start(t, redis.url), await Broker.start(t, redis.url)];
  return [one, two, [one.url, two.url]];
}

test("a killed broker costs no lease", async (t) => {
  const [one, , urls] = await twoBrokers(t);
  const client = clientOf(t, urls);
  const lease = await client.acquire("a", { ttlMs: LONG_TTL_MS });
  const inner = await client.acquire("a", { under: lease });
  await one.kill();
  await sleep(LONG_EXPIRY_MS + 500);
  assert(lease.isValid() && inner.isValid());
  await inner.release();
  await lease.release();
  const taken = await free(client, "a");
  assert(taken.fencingToken > lease.fencingToken);
});

test("a broker that stands still is left", async (t) => {
  const [one, , urls] = await twoBrokers(t);
  const client = clientOf(t, urls);
  const lease = await client.acquire("a", { ttlMs: LONG_TTL_MS });
  one.program.pause();
  await sleep(LONG_EXPIRY_MS + 500);
  assert(lease.isValid(), String(lease.lostReason));
  await lease.release();
  await takes(client, "a");
  one.program.resume();
});

test("a drain moves leases and waits", async (t) => {
  const [one, two, urls] = await twoBrokers(t);
  const [client, observer] = [clientOf(t, urls), clientOf(t, two.url)];
  const lease = await client.acquire("a", { ttlMs: TTL_MS });
  const waits = client.acquire("a", { ttlMs: TTL_MS });
  await inLine(observer, "a", 1);
  one.program.signal("SIGTERM");
  assert.equal(await one.program.ended(), 0);
  await sleep(EXPIRY_MS);
  assert(lease.isValid());
  await inLine(observer, "a", 1);
  await lease.release();
  const next = await waits;
  assert(next.fencingToken > lease.fencingToken);
});

test("a wait keeps its place when its broker dies", async (t) => {
  const [one, two, urls] = await twoBrokers(t);
  const [client, other] = [clientOf(t, urls), clientOf(t, two.url)];
  const lease = await other.acquire("a");
  const first = client.acquire("a");
  await inLine(other, "a", 1);
  let hasPassed = false;
  const second = other.acquire("a").then((passed) => {
    hasPassed = true;
    return passed;
  });
  await inLine(other, "a", 2);
  await one.kill();
  // The place of the wait is its own again once its call is repeated.
  await takes(client, "b");
  await lease.release();
  const leads = await first;
  assert(!hasPassed, "nobody passes it");
  await leads.release();
  await (await second).release();
});

test("a release without an answer is repeated elsewhere", async (t) => {
  const [one, , urls] = await twoBrokers(t);
  const client = clientOf(t, urls);
  const lease = await client.acquire("a");
  one.program.pause();
  const released = lease.release();
  await one.kill();
  await released;
  await free(client, "a");
});

test("a part whose release has no answer is released elsewhere", async (t) => {
  const [one, two] = await twoBrokers(t);
  const proxy = await Proxy.start(t, one.addr);
  const client = clientOf(t, [proxy.url, two.url]);
  const lease = await client.acquire("a", { ttlMs: TTL_MS });
  const added = await client.acquire("b", { under: lease });
  proxy.swallow("toClient");
  const released = added.release();
  const { lost } = proxy;
  await proxy.until(() => proxy.lost > lost);
  proxy.refuses = true;
  proxy.cut();
  await released;
  await sleep(EXPIRY_MS);
  assert(lease.isValid(), String(lease.lostReason));
  await takes(client, "b");
  await lease.release();
  await takes(client, "a");
});

test("an acquire without an answer is the same when it is repeated", async (t) => {
  const [one, two] = await twoBrokers(t);
  const proxy = await Proxy.start(t, one.addr);
  const [client, observer] = [clientOf(t, [proxy.url, two.url]), clientOf(t, two.url)];
  await client.connect();
  proxy.swallow("toClient");
  const call = client.acquire("a");
  await until(async () => (await observer.get("a")) !== null);
  const state = await observer.get("a");
  proxy.refuses = true;
  proxy.cut();
  const lease = await call;
  assert.equal(lease.leaseId, state?.holders[0]?.leaseId, "the grant that was not heard of");
  assert.equal(lease.fencingToken, state?.lastFencingToken);
});

test("a store that cannot be reached is waited for", async (t) => {
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

test("a store without memory is told of and keeps leases alive", async (t) => {
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
