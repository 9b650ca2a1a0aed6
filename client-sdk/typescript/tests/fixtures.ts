// Test fixtures: a shared real broker or the fake broker, with clients that are shut down at the end of the test.

import assert from "node:assert/strict";
import { once } from "node:events";
import type { Server } from "node:net";
import type { TestContext } from "node:test";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import type { ClientOptions, Lease } from "@leasehold/client";
import { Client } from "@leasehold/client";
import { FakeBroker } from "@leasehold/client/testing";

import { Broker } from "./processes.js";

/** Maximum delay of an event that needs no waiting. */
export const PROMPT_MS = 1_000;

/** A factory for clients of one broker. */
export interface Fixture {
  client(options?: ClientOptions): Client;
}

let sharedBrokerPromise: Promise<Broker> | undefined;
after(async () => (await sharedBrokerPromise)?.kill());

/** Returns a broker on the memory store that no test kills or pauses. Tests use their names as names of locks. */
export function sharedBroker(): Promise<Broker> {
  sharedBrokerPromise ??= Broker.spawn();
  return sharedBrokerPromise;
}

/** Creates a client that is shut down at the end of the test. */
export function clientOf(t: TestContext, endpoints: string | readonly string[], options?: ClientOptions): Client {
  const client = new Client(endpoints, options);
  t.after(() => client.shutdown());
  return client;
}

/** Registers a test twice: with a real broker and with the fake broker. */
export function testBothBrokers(name: string, body: (t: TestContext, fixture: Fixture) => Promise<void>): void {
  test(`${name} (real)`, async (t) => {
    const { url } = await sharedBroker();
    await body(t, { client: (options) => clientOf(t, url, options) });
  });
  test(`${name} (fake)`, async (t) => {
    const fake = new FakeBroker();
    await body(t, { client: (options) => fake.client(options?.owner) });
  });
}

/** Acquires a lock within `waitMs`, and releases it. */
export async function acquireAndRelease(client: Client, lock: string, waitMs = 10_000): Promise<void> {
  await (await client.acquire(lock, { waitMs })).release();
}

/** Acquires a lock that is free. */
export async function acquireFree(client: Client, lock: string): Promise<Lease> {
  const lease = await client.tryAcquire(lock);
  assert(lease !== null, `${lock} is not free`);
  return lease;
}

/** Waits until `count` calls wait for a lock. */
export async function waitForQueueLength(client: Client, lock: string, count: number): Promise<void> {
  await waitUntil(async () => ((await client.get(lock))?.queueLength ?? 0) === count);
}

/** Polls until the condition is true, because no event reports it. */
export async function waitUntil(condition: () => Promise<boolean>, limitMs = 20_000): Promise<void> {
  const deadline = performance.now() + limitMs;
  while (!(await condition())) {
    assert(performance.now() < deadline, `the condition was not true within ${String(limitMs)} ms`);
    await sleep(5);
  }
}

/** Waits until a lease is lost, and returns the reason. */
export async function waitForLoss(lease: Lease): Promise<unknown> {
  const { signal } = lease;
  if (!signal.aborted) {
    // The timer keeps the process alive, which a lease does not.
    const keepAliveTimer = setInterval(() => undefined, 1_000);
    await new Promise((resolve) => {
      signal.addEventListener("abort", resolve, { once: true });
    });
    clearInterval(keepAliveTimer);
  }
  return lease.lostReason;
}

/** Starts a server that listens until the test ends, and returns its URL. */
export async function startServer(t: TestContext, server: Server): Promise<string> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  const address = server.address();
  assert(address !== null && typeof address === "object");
  return `http://127.0.0.1:${String(address.port)}`;
}
