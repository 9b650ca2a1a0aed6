// Tests of cancellation: a call that is cancelled at any moment leaves neither a lock nor a queue position.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import type { Lease } from "@leasehold/client";

import { acquireAndRelease, clientOf, PROMPT_MS, sharedBroker, waitForQueueLength, waitUntil } from "./fixtures.js";
import { Broker } from "./processes.js";
import { Proxy } from "./proxy.js";

const LONG_MS = 20_000;

test("an acquire that is cancelled at any moment leaves no lock behind", async (t) => {
  const { url } = await sharedBroker();
  const [client, other] = [clientOf(t, url), clientOf(t, url)];
  await client.connect();
  let granted = 0;
  for (let round = 0; round < 60; round += 1) {
    const controller = new AbortController();
    const call = client.acquire(t.name, { ttlMs: LONG_MS, signal: controller.signal });
    const outcome = call.catch(() => null);
    // Cancels at moments from before the call is sent until after its response.
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
    await acquireAndRelease(other, t.name, PROMPT_MS);
  }
  t.diagnostic(`granted before the cancellation: ${String(granted)}`);
  assert(granted < 60, "no acquire was cancelled before its grant");
});

test("a grant that crosses a cancellation is released", async (t) => {
  const broker = await Broker.start(t);
  const proxy = await Proxy.start(t, broker.addr);
  const [client, other] = [clientOf(t, proxy.url), clientOf(t, broker.url)];
  const held = await other.acquire("a");
  const controller = new AbortController();
  const call = client.acquire("a", { ttlMs: LONG_MS, signal: controller.signal });
  await waitForQueueLength(other, "a", 1);
  proxy.setHeld(true);
  await held.release();
  await waitUntil(async () => Number((await other.get("a"))?.holders[0]?.fencingToken) > held.fencingToken);
  controller.abort();
  await assert.rejects(call, { name: "AbortError" });
  proxy.setHeld(false);
  await acquireAndRelease(other, "a", 2_000);
});

test("an undelivered grant is released when its acquire is cancelled", async (t) => {
  const broker = await Broker.start(t);
  const proxy = await Proxy.start(t, broker.addr);
  const [client, other] = [clientOf(t, proxy.url), clientOf(t, broker.url)];
  await client.connect();
  // No response arrives before half of the validity has passed, so the client has the grant but does not deliver it.
  proxy.delayMs = 2_200;
  const controller = new AbortController();
  const call = client.acquire("a", { ttlMs: 4_000, signal: controller.signal });
  await waitUntil(async () => (await other.get("a")) !== null);
  await sleep(2_250);
  controller.abort();
  await assert.rejects(call, { name: "AbortError" });
  proxy.delayMs = 0;
  await acquireAndRelease(other, "a", 1_500);
});

test("an acquire that is cancelled while no broker is reachable is not sent later", async (t) => {
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
  await acquireAndRelease(client, "b");
  assert.equal(await client.get("a"), null);
});
