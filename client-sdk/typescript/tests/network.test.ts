// Tests of network faults between a client and its broker: dropped and delayed packets, broken connections.

import assert from "node:assert/strict";
import { test } from "node:test";

import type { Lease } from "@leasehold/client";
import { UnavailableError } from "@leasehold/client";

import { clientOf, waitForLoss, waitForQueueLength, waitUntil } from "./fixtures.js";
import { Broker } from "./processes.js";
import type { Direction } from "./proxy.js";
import { Proxy } from "./proxy.js";

const TTL_MS = 2_000;

test("with dropped packets the validity ends before another caller is granted the lock", async (t) => {
  const broker = await Broker.start(t);
  const other = clientOf(t, broker.url);
  const dropPackets = async (direction: Direction) => {
    const proxy = await Proxy.start(t, broker.addr);
    const lease = await clientOf(t, proxy.url).acquire(direction, { ttlMs: TTL_MS });
    const next = other.acquire(direction);
    await waitForQueueLength(other, direction, 1);
    proxy.drop(direction);
    const lostAt = waitForLoss(lease).then(() => performance.now());
    const granted = await next;
    assert((await lostAt) < performance.now() && proxy.droppedBytes > 0);
    assert(!lease.isValid() && granted.fencingToken > lease.fencingToken);
  };
  await Promise.all((["toClient", "toBroker"] as const).map(dropPackets));
});

test("a set limit whose connection breaks is rejected as unavailable, and can be repeated", async (t) => {
  const broker = await Broker.start(t);
  const proxy = await Proxy.start(t, broker.addr);
  const [client, other] = [clientOf(t, proxy.url), clientOf(t, broker.url)];
  await client.connect();
  proxy.drop("toClient");
  const rejected = assert.rejects(client.setLimit("a", 2), UnavailableError);
  await waitUntil(async () => (await other.get("a")) !== null);
  proxy.drop();
  proxy.resetConnections();
  await rejected;
  assert.equal(await client.setLimit("a", 2), 2);
});

test("the validity starts at the sending, however late it is confirmed", async (t) => {
  const proxy = await Proxy.start(t, (await Broker.start(t)).addr);
  const client = clientOf(t, proxy.url);
  await client.connect();
  const delayMs = 700;
  proxy.delayMs = delayMs;
  const sentAt = performance.now();
  const lease = await client.acquire("a", { ttlMs: TTL_MS });
  const elapsedMs = performance.now() - sentAt;
  assert(elapsedMs >= delayMs, "the grant was not late");
  // The clock has a resolution of 10 ms and is rounded to the safe side. Only the delay is known to lie between the
  // sending and the confirmation.
  assert(
    lease.remainingMs() <= TTL_MS - 500 - delayMs + 30,
    `${String(lease.remainingMs())} left, ${String(elapsedMs)} late`,
  );
});

test("a late grant is delivered after the next confirmed heartbeat", async (t) => {
  const broker = await Broker.start(t);
  const proxy = await Proxy.start(t, broker.addr);
  const [client, other] = [clientOf(t, proxy.url), clientOf(t, broker.url)];
  await Promise.all([client.connect(), other.connect()]);
  proxy.delayMs = 1_200;
  const requestedAt = performance.now();
  const call = client.acquire("a", { ttlMs: TTL_MS });
  await waitUntil(async () => (await other.get("a")) !== null);
  // Later messages of the broker arrive directly after the grant.
  proxy.delayMs = 0;
  const lease = await call;
  assert(performance.now() - requestedAt >= 1_150, "the grant was not late");
  assert(lease.remainingMs() > TTL_MS / 2 - 500, `${String(lease.remainingMs())} left`);
});

test("a grant that arrives after its validity is rejected", async (t) => {
  const proxy = await Proxy.start(t, (await Broker.start(t)).addr);
  const client = clientOf(t, proxy.url);
  await client.connect();
  proxy.delayMs = 1_200;
  await assert.rejects(client.acquire("a", { ttlMs: TTL_MS }), UnavailableError);
});

test("leases share one connection, and use another one past a thousand", async (t) => {
  const broker = await Broker.start(t);
  const proxy = await Proxy.start(t, broker.addr);
  const client = clientOf(t, proxy.url);
  // A slow machine answers no heartbeat for seconds while it serves all calls at once, and the client then reconnects.
  const leases: Lease[] = [];
  for (let first = 0; first < 1_000; first += 100) {
    const names = Array.from({ length: 100 }, (_, index) => `lock-${String(first + index)}`);
    leases.push(...(await Promise.all(names.map((name) => client.acquire(name, { ttlMs: 20_000 })))));
  }
  assert.equal(proxy.connectionCount, 1);
  await using more = await client.acquire("one more");
  assert.equal(proxy.connectionCount, 2);
  assert(more.isValid() && leases.every((lease) => lease.isValid()));
  await Promise.all(leases.map((lease) => lease.release()));
});

test("a dead connection is detected while only an acquire is pending", async (t) => {
  const broker = await Broker.start(t);
  const proxy = await Proxy.start(t, broker.addr);
  const [client, other] = [clientOf(t, proxy.url), clientOf(t, broker.url)];
  const held = await other.acquire("a");
  const pendingAcquire = client.acquire("a");
  await waitForQueueLength(other, "a", 1);
  const { connectionCount } = proxy;
  proxy.drop("toBroker", "toClient");
  const startedAt = performance.now();
  await proxy.waitUntil(() => proxy.connectionCount > connectionCount);
  assert(performance.now() - startedAt < 5_000, "the detection took longer than the broker keeps the queue position");
  proxy.drop();
  proxy.resetConnections();
  await held.release();
  await (await pendingAcquire).release();
});
