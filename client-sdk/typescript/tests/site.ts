// Where a test plays: a real broker that nobody harms, or the fake, with clients that end with the test.

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

/** How late anything may come that needs no time of its own. */
export const SOON_MS = 1_000;

/** Makes clients of one broker. */
export interface Site {
  client(options?: ClientOptions): Client;
}

let shared: Promise<Broker> | undefined;
after(async () => (await shared)?.kill());

/** A broker on the memory store that nobody harms. Locks have the name of their test. */
export function sharedBroker(): Promise<Broker> {
  shared ??= Broker.free();
  return shared;
}

/** A client that ends with the test. */
export function clientOf(t: TestContext, endpoints: string | readonly string[], options?: ClientOptions): Client {
  const client = new Client(endpoints, options);
  t.after(() => client.shutdown());
  return client;
}

/** The same test with a real broker and with the fake. */
export function bothWays(name: string, play: (t: TestContext, site: Site) => Promise<void>): void {
  test(`${name} (real)`, async (t) => {
    const { url } = await sharedBroker();
    await play(t, { client: (options) => clientOf(t, url, options) });
  });
  test(`${name} (fake)`, async (t) => {
    const fake = new FakeBroker();
    await play(t, { client: (options) => fake.client(options?.owner) });
  });
}

/** Takes a lock that is free, or soon will be, and gives it back. */
export async function takes(client: Client, lock: string, waitMs = 10_000): Promise<void> {
  await (await client.acquire(lock, { waitMs })).release();
}

/** Takes a lock that is free. */
export async function free(client: Client, lock: string): Promise<Lease> {
  const lease = await client.tryAcquire(lock);
  assert(lease !== null, `${lock} is free`);
  return lease;
}

/** Waits until so many wait for a lock. */
export async function inLine(client: Client, lock: string, count: number): Promise<void> {
  await until(async () => ((await client.get(lock))?.queueLength ?? 0) === count);
}

/** Asks until it is so; nobody can be told. */
export async function until(condition: () => Promise<boolean>, limitMs = 20_000): Promise<void> {
  const by = performance.now() + limitMs;
  while (!(await condition())) {
    assert(performance.now() < by, "it did not happen");
    await sleep(5);
  }
}

/** When a lease is lost; why. */
export async function lossOf(lease: Lease): Promise<unknown> {
  const { signal } = lease;
  if (!signal.aborted) {
    // A lease keeps no process alive.
    const alive = setInterval(() => undefined, 1_000);
    await new Promise((resolve) => {
      signal.addEventListener("abort", resolve, { once: true });
    });
    clearInterval(alive);
  }
  return lease.lostReason;
}

/** Has a server listen until the test ends; its URL. */
export async function freeServer(t: TestContext, server: Server): Promise<string> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  const address = server.address();
  assert(address !== null && typeof address === "object");
  return `http://127.0.0.1:${String(address.port)}`;
}
