// Tests of lost locks and failed calls: the reasons that the holder and the callers receive.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import type { QueuePosition } from "@leasehold/client";
import { LeaseLostError, StoreRecoveringError, UnavailableError, WaitTimeoutError } from "@leasehold/client";

import { acquireAndRelease, clientOf, waitForLoss, waitForQueueLength } from "./fixtures.js";
import { Broker, Redis } from "./processes.js";
import { Proxy } from "./proxy.js";

const TTL_MS = 2_000;
/** Maximum delay of the report of a loss, without a check by the program. */
const REPORT_DELAY_MS = 250;

test("without a broker a lease expires for good, and is reported lost once", async (t) => {
  const broker = await Broker.start(t);
  const client = clientOf(t, broker.url);
  let notified = 0;
  const lease = await client.acquire("a", { ttlMs: TTL_MS, onLost: () => (notified += 1) });
  await sleep(TTL_MS);
  assert(lease.isValid(), "heartbeats did not renew the lease");
  const lost = waitForLoss(lease);
  const killedAt = performance.now();
  await broker.kill();
  assert(lease.isValid(), "the lease expired too early");
  assert.equal(await lost, "Expired");
  assert(performance.now() - killedAt <= TTL_MS - 500 + REPORT_DELAY_MS);
  assert(lease.signal.reason instanceof LeaseLostError && lease.remainingMs() === 0);
  await assert.rejects(lease.release(), (error) => error === lease.signal.reason);
  await broker.restart();
  await acquireAndRelease(client, "a");
  assert(!lease.isValid(), "the lock was acquired again silently");
  assert.equal(notified, 1);
});

test("a loss that is detected without the event loop is reported once, with one error", async (t) => {
  const broker = await Broker.start(t);
  const client = clientOf(t, broker.url);
  const notified: unknown[] = [];
  const lease = await client.acquire("a", { ttlMs: TTL_MS, onLost: (lost) => notified.push(lost.lostReason) });
  await broker.kill();
  const startedAt = performance.now();
  while (lease.isValid());
  const elapsedMs = performance.now() - startedAt;
  assert(elapsedMs <= TTL_MS - 500 + REPORT_DELAY_MS, String(elapsedMs));
  assert.deepEqual([lease.signal.aborted, lease.remainingMs()], [true, 0]);
  assert.throws(
    () => {
      lease.check();
    },
    (error) => error === lease.signal.reason,
  );
  // The worker thread also reports the loss.
  await sleep(REPORT_DELAY_MS);
  assert.deepEqual(notified, ["Expired"]);
});

test("a lease that the store lost is reported", async (t) => {
  const redis = await Redis.start(t);
  const client = clientOf(t, (await Broker.start(t, redis.url)).url);
  const lease = await client.acquire("a");
  const waited: QueuePosition[] = [];
  const waiter = client.acquire("a", { waitMs: 4_000, onQueue: (position) => waited.push(position) });
  await waitForQueueLength(client, "a", 1);
  await redis.command("FLUSHALL");
  assert.equal(await waitForLoss(lease), "StoreLost");
  await assert.rejects(waiter);
  const recovering = waited.filter(({ recovery }) => recovery !== undefined);
  assert.equal(waited[0]?.recovery, undefined);
  assert.deepEqual([recovering[0]?.position, recovering[0]?.recovery?.cause], [1, "was found empty"]);
  await assert.rejects(lease.release(), { code: "LeaseLost" });
  const positions: QueuePosition[] = [];
  const onQueue = (position: QueuePosition) => positions.push(position);
  await assert.rejects(client.acquire("b", { waitMs: 0, onQueue }), (error) => {
    return error instanceof StoreRecoveringError && Number(error.retryAfterMs) > 0;
  });
  assert.deepEqual(
    positions.map(({ position, recovery }) => [position, recovery?.cause]),
    [[0, "was found empty"]],
  );
  const recovery = positions[0]?.recovery;
  assert(recovery?.since instanceof Date && recovery.remainingMs > 0);
});

test("a lock is held no longer than maxHoldMs", async (t) => {
  const client = clientOf(t, (await Broker.start(t)).url);
  const lease = await client.acquire("a", { ttlMs: TTL_MS, maxHoldMs: TTL_MS });
  const grantedAt = performance.now();
  // The client's own clock may end the validity first.
  assert(["MaxHold", "Expired"].includes(String(await waitForLoss(lease))));
  assert(performance.now() - grantedAt <= TTL_MS + REPORT_DELAY_MS);
});

test("a loss aborts the signal of the work, and using rejects", async (t) => {
  const broker = await Broker.start(t);
  const client = clientOf(t, broker.url);
  const work = client.using("a", { ttlMs: TTL_MS }, async (_, signal) => {
    await broker.kill();
    await sleep(60_000, undefined, { signal });
  });
  await assert.rejects(work, (error) => error instanceof LeaseLostError && error.cause instanceof Error);
  await broker.restart();
  const ignoringWork = client.using("b", { ttlMs: TTL_MS }, async (lease) => {
    await broker.kill();
    await waitForLoss(lease);
    return "done";
  });
  await assert.rejects(ignoringWork, LeaseLostError);
});

test("an acquire without a response fails with UnavailableError", async (t) => {
  const broker = await Broker.start(t);
  const client = clientOf(t, broker.url);
  await client.connect();
  await broker.kill();
  const startedAt = performance.now();
  await assert.rejects(client.tryAcquire("a"), (error) => {
    return error instanceof UnavailableError && error.message.includes(broker.addr);
  });
  const elapsedMs = performance.now() - startedAt;
  assert(elapsedMs >= 4_990 && elapsedMs < 8_000, String(elapsedMs));
});

test("a wait that is repeated after its end has timed out", async (t) => {
  const broker = await Broker.start(t);
  const proxy = await Proxy.start(t, broker.addr);
  const [client, other] = [clientOf(t, proxy.url), clientOf(t, broker.url)];
  const lease = await other.acquire("a", { ttlMs: 20_000 });
  const call = assert.rejects(client.acquire("a", { waitMs: 1_000 }), (error) => {
    return error instanceof WaitTimeoutError && error.holders[0]?.leaseId === lease.leaseId;
  });
  await waitForQueueLength(other, "a", 1);
  proxy.rejectsConnections = true;
  proxy.resetConnections();
  await sleep(1_500);
  proxy.rejectsConnections = false;
  await call;
});
