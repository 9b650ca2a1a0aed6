// Every way in which a lock is lost, and what its holder and its callers hear.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { LeaseLostError, StoreRecoveringError, UnavailableError, WaitTimeoutError } from "@leasehold/client";

import { Broker, Redis } from "./processes.js";
import { Proxy } from "./proxy.js";
import { clientOf, inLine, lossOf, takes } from "./site.js";

const TTL_MS = 2_000;
/** How late a loss is told that nobody asks for. */
const TICKS_MS = 250;

test("a holder without a broker stops trusting by itself, for good, and is told once", async (t) => {
  const broker = await Broker.start(t);
  const client = clientOf(t, broker.url);
  let told = 0;
  const lease = await client.acquire("a", { ttlMs: TTL_MS, onLost: () => (told += 1) });
  await sleep(TTL_MS);
  assert(lease.isValid(), "heartbeats keep it");
  const lost = lossOf(lease);
  const killedAt = performance.now();
  await broker.kill();
  assert(lease.isValid(), "its time is not over yet");
  assert.equal(await lost, "Expired");
  assert(performance.now() - killedAt <= TTL_MS - 500 + TICKS_MS);
  assert(lease.signal.reason instanceof LeaseLostError && lease.remainingMs() === 0);
  await assert.rejects(lease.release(), (error) => error === lease.signal.reason);
  await broker.restart();
  await takes(client, "a");
  assert(!lease.isValid(), "nothing is taken again silently");
  assert.equal(told, 1);
});

test("a loss that a program finds without its event loop is told once, and is the same to all", async (t) => {
  const broker = await Broker.start(t);
  const client = clientOf(t, broker.url);
  const told: unknown[] = [];
  const lease = await client.acquire("a", { ttlMs: TTL_MS, onLost: (lost) => told.push(lost.lostReason) });
  await broker.kill();
  const begun = performance.now();
  while (lease.isValid());
  const took = performance.now() - begun;
  assert(took <= TTL_MS - 500 + TICKS_MS, String(took));
  assert.deepEqual([lease.signal.aborted, lease.remainingMs()], [true, 0]);
  assert.throws(
    () => {
      lease.check();
    },
    (error) => error === lease.signal.reason,
  );
  // The thread says so, too.
  await sleep(TICKS_MS);
  assert.deepEqual(told, ["Expired"]);
});

test("a store that loses a lock is told of", async (t) => {
  const redis = await Redis.start(t);
  const client = clientOf(t, (await Broker.start(t, redis.url)).url);
  const lease = await client.acquire("a");
  await redis.command("FLUSHALL");
  assert.equal(await lossOf(lease), "StoreLost");
  await assert.rejects(lease.release(), { code: "LeaseLost" });
  await assert.rejects(client.acquire("b", { waitMs: 0 }), (error) => {
    return error instanceof StoreRecoveringError && Number(error.retryAfterMs) > 0;
  });
});

test("a lock is held no longer than maxHoldMs", async (t) => {
  const client = clientOf(t, (await Broker.start(t)).url);
  const lease = await client.acquire("a", { ttlMs: TTL_MS, maxHoldMs: TTL_MS });
  const grantedAt = performance.now();
  // The client's own clock may be first.
  assert(["MaxHold", "Expired"].includes(String(await lossOf(lease))));
  assert(performance.now() - grantedAt <= TTL_MS + TICKS_MS);
});

test("work is told of a loss by its signal, and using says so", async (t) => {
  const broker = await Broker.start(t);
  const client = clientOf(t, broker.url);
  const work = client.using("a", { ttlMs: TTL_MS }, async (_, signal) => {
    await broker.kill();
    await sleep(60_000, undefined, { signal });
  });
  await assert.rejects(work, (error) => error instanceof LeaseLostError && error.cause instanceof Error);
  await broker.restart();
  const deaf = client.using("b", { ttlMs: TTL_MS }, async (lease) => {
    await broker.kill();
    await lossOf(lease);
    return "done";
  });
  await assert.rejects(deaf, LeaseLostError);
});

test("a call that nobody answers says so", async (t) => {
  const broker = await Broker.start(t);
  const client = clientOf(t, broker.url);
  await client.connect();
  await broker.kill();
  const begun = performance.now();
  await assert.rejects(client.tryAcquire("a"), (error) => {
    return error instanceof UnavailableError && error.message.includes(broker.addr);
  });
  const took = performance.now() - begun;
  assert(took >= 4_990 && took < 8_000, String(took));
});

test("a wait that is repeated late has timed out", async (t) => {
  const broker = await Broker.start(t);
  const proxy = await Proxy.start(t, broker.addr);
  const [client, other] = [clientOf(t, proxy.url), clientOf(t, broker.url)];
  const lease = await other.acquire("a", { ttlMs: 20_000 });
  const call = assert.rejects(client.acquire("a", { waitMs: 1_000 }), (error) => {
    return error instanceof WaitTimeoutError && error.holders[0]?.leaseId === lease.leaseId;
  });
  await inLine(other, "a", 1);
  proxy.refuses = true;
  proxy.cut();
  await sleep(1_500);
  proxy.refuses = false;
  await call;
});
