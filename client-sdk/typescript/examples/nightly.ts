// Processes orders one by one while it holds their lock, and stops when the lock is lost: nightly URL.

import type { Lease } from "@leasehold/client";
import { Client, LeaseLostError } from "@leasehold/client";

/** A table that rejects late writes of former holders of the lock. */
class Orders {
  private newest = 0;
  private readonly done: string[] = [];

  write(order: string, fencingToken: number): void {
    if (fencingToken < this.newest) {
      throw new Error(`a newer holder has written: ${String(this.newest)}`);
    }
    this.newest = fencingToken;
    this.done.push(order);
  }

  get count(): number {
    return this.done.length;
  }
}

async function reconcile(lease: Lease, signal: AbortSignal, orders: Orders): Promise<void> {
  for (const order of ["41", "42", "43"]) {
    // Pass the signal to functions that can be aborted, such as fetch(url, { signal }).
    signal.throwIfAborted();
    lease.check();
    orders.write(order, lease.fencingToken);
  }
}

const [url = "http://127.0.0.1:7070"] = process.argv.slice(2);
await using client = new Client(url, { owner: "nightly" });
const orders = new Orders();
try {
  await client.using("orders", { ttlMs: 30_000, reason: "nightly reconcile" }, async (lease, signal) => {
    await reconcile(lease, signal, orders);
  });
  console.log(`done: ${String(orders.count)} orders`);
} catch (error) {
  if (!(error instanceof LeaseLostError)) {
    throw error;
  }
  console.log(`stopped after ${String(orders.count)} orders: ${error.message}`);
}
