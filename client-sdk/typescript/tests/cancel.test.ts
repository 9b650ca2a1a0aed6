// A call that is cancelled at any moment leaves nothing behind.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import type { Lease } from "@leasehold/client";

import { Broker } from "./processes.js";
import { Proxy } from "./proxy.js";
import { clientOf, inLine, sharedBroker, SOON_MS, takes, until } from "./site.js";

const LONG_MS = 20_000;

test("a lock that is free is had, or free, whenever its call is cancelled", async (t) => {
  const { url } = await sharedBroker();
  const [client, other] = [clientOf(t, url), clientOf(t, url)];
  await client.connect();
  let granted = 0;
  for (let round = 0; round < 60; round += 1) {
    const controller = new AbortController();
    const call = client.acquire(t.name, { ttlMs: LONG_MS, signal: controller.signal });
    const outcome = call.catch(() => null);
    // From before the call was sent until after it was answered.
    for (let turn = 0; turn < round % 12; turn += 1) {
      await new Promise((resolve) => setImmediate(resolve));
    }
    controller.abort();
    const lease: Lease | null = await outcome;
    if (lease !== null) {
      granted += 1;
      assert(lease.isValid());
      await lease.release();
    }
    await takes(other, t.name, SOON_MS);
  }
  t.diagnostic(`granted before: ${String(granted)}`);
  assert(granted < 60, "some were cancelled");
});

test("a grant that crosses a cancel is given back", async (t) => {
  const broker = await Broker.start(t);
  const proxy = await Proxy.start(t, broker.addr);
  const [client, other] = [clientOf(t, proxy.url), clientOf(t, broker.url)];
  const held = await other.acquire("a");
  const controller = new AbortController();
  const call = client.acquire("a", { ttlMs: LONG_MS, signal: controller.signal });
  await inLine(other, "a", 1);
  proxy.holdBack(true);
  await held.release();
  await until(async () => Number((await other.get("a"))?.holders[0]?.fencingToken) > held.fencingToken);
  controller.abort();
  await assert.rejects(call, { name: "AbortError" });
  proxy.holdBack(false);
  await takes(other, "a", 2_000);
});

test("a grant that is not handed out yet is given back when its call is cancelled", async (t) => {
  const broker = await Broker.start(t);
  const proxy = await Proxy.start(t, broker.addr);
  const [client, other] = [clientOf(t, proxy.url), clientOf(t, broker.url)];
  await client.connect();
  // No answer comes before half of the validity has passed, so the client has the grant and does not hand it out.
  proxy.delayMs = 2_200;
  const controller = new AbortController();
  const call = client.acquire("a", { ttlMs: 4_000, signal: controller.signal });
  await until(async () => (await other.get("a")) !== null);
  await sleep(2_250);
  controller.abort();
  await assert.rejects(call, { name: "AbortError" });
  proxy.delayMs = 0;
  await takes(other, "a", 1_500);
});

test("a call that is cancelled while no broker can be reached is not made later", async (t) => {
  const broker = await Broker.start(t);
  const client = clientOf(t, broker.url);
  await client.connect();
  await broker.kill();
  const controller = new AbortController();
  const call = client.acquire("a", { signal: controller.signal });
  await new Promise((resolve) => setImmediate(resolve));
  controller.abort();
  await assert.rejects(call, { name: "AbortError" });
  await broker.restart();
  await takes(client, "b");
  assert.equal(await client.get("a"), null);
});
