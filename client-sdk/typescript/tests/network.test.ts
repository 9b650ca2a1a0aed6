// Networks that swallow, hold up and cut what is said between a client and its broker.

import assert from "node:assert/strict";
import { test } from "node:test";

import { UnavailableError } from "@leasehold/client";

import { Broker } from "./processes.js";
import type { Way } from "./proxy.js";
import { Proxy } from "./proxy.js";
import { clientOf, inLine, lossOf, until } from "./site.js";

const TTL_MS = 2_000;

test("packets that are swallowed end trust before anybody else is granted the lock", async (t) => {
  const broker = await Broker.start(t);
  const other = clientOf(t, broker.url);
  const swallow = async (way: Way) => {
    const proxy = await Proxy.start(t, broker.addr);
    const lease = await clientOf(t, proxy.url).acquire(way, { ttlMs: TTL_MS });
    const next = other.acquire(way);
    await inLine(other, way, 1);
    proxy.swallow(way);
    const lost = lossOf(lease).then(() => performance.now());
    const granted = await next;
    assert((await lost) < performance.now() && proxy.lost > 0);
    assert(!lease.isValid() && granted.fencingToken > lease.fencingToken);
  };
  await Promise.all((["toClient", "toBroker"] as const).map(swallow));
});

test("validity counts from the sending, however late it is confirmed", async (t) => {
  const proxy = await Proxy.start(t, (await Broker.start(t)).addr);
  const client = clientOf(t, proxy.url);
  await client.connect();
  const delay = 700;
  proxy.delayMs = delay;
  const sent = performance.now();
  const lease = await client.acquire("a", { ttlMs: TTL_MS });
  const late = performance.now() - sent;
  assert(late >= delay, "it was not late");
  // The clock shows hundredths of a second, and is read on the safe side of each. Only the delay is known to lie
  // between the sending and the confirmation.
  assert(lease.remainingMs() <= TTL_MS - 500 - delay + 30, `${String(lease.remainingMs())} left, ${String(late)} late`);
});

test("a grant that comes too late to rely on is handed out with the next heartbeat", async (t) => {
  const broker = await Broker.start(t);
  const proxy = await Proxy.start(t, broker.addr);
  const [client, other] = [clientOf(t, proxy.url), clientOf(t, broker.url)];
  await Promise.all([client.connect(), other.connect()]);
  proxy.delayMs = 1_200;
  const asked = performance.now();
  const call = client.acquire("a", { ttlMs: TTL_MS });
  await until(async () => (await other.get("a")) !== null);
  // What is said from here on comes right behind the grant.
  proxy.delayMs = 0;
  const lease = await call;
  assert(performance.now() - asked >= 1_150, "it was not late");
  assert(lease.remainingMs() > TTL_MS / 2 - 500, `${String(lease.remainingMs())} left`);
});

test("a grant that nobody can rely on is none", async (t) => {
  const proxy = await Proxy.start(t, (await Broker.start(t)).addr);
  const client = clientOf(t, proxy.url);
  await client.connect();
  proxy.delayMs = 1_200;
  await assert.rejects(client.acquire("a", { ttlMs: TTL_MS }), UnavailableError);
});

test("leases and waits share one connection, and have another past a thousand", async (t) => {
  const broker = await Broker.start(t);
  const proxy = await Proxy.start(t, broker.addr);
  const client = clientOf(t, proxy.url);
  const names = Array.from({ length: 1_000 }, (_, lock) => `lock-${String(lock)}`);
  const leases = await Promise.all(names.map((name) => client.acquire(name, { ttlMs: 20_000 })));
  assert.equal(proxy.opened, 1);
  await using more = await client.acquire("one more");
  assert.equal(proxy.opened, 2);
  assert(more.isValid() && leases.every((lease) => lease.isValid()));
  await Promise.all(leases.map((lease) => lease.release()));
});

test("a dead connection is noticed while nothing but a wait is on it", async (t) => {
  const broker = await Broker.start(t);
  const proxy = await Proxy.start(t, broker.addr);
  const [client, other] = [clientOf(t, proxy.url), clientOf(t, broker.url)];
  const held = await other.acquire("a");
  const waits = client.acquire("a");
  await inLine(other, "a", 1);
  const { opened } = proxy;
  proxy.swallow("toBroker", "toClient");
  const begun = performance.now();
  await proxy.until(() => proxy.opened > opened);
  assert(performance.now() - begun < 5_000, "before the place in line is given up");
  proxy.swallow();
  proxy.cut();
  await held.release();
  await (await waits).release();
});
