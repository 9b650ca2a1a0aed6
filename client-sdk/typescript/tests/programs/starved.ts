// Holds a lock, exhausts its file descriptors, and prints whether the lock stays valid: starved URL LOCK TTL_MS.

import { openSync } from "node:fs";

import { Client } from "@leasehold/client";

const [url = "", lock = "", ttlMs = ""] = process.argv.slice(2);
const client = new Client(url);
const lease = await client.acquire(lock, { ttlMs: Number(ttlMs) });
try {
  for (;;) {
    openSync("/dev/null", "r");
  }
} catch {
  console.log(`starved ${String(lease.isValid())}`);
}
lease.signal.addEventListener("abort", () => {
  console.log(`lost ${String(lease.lostReason)} ${String(lease.isValid())}`);
  process.exit();
});
setInterval(
  () => {
    if (lease.isValid()) {
      console.log("still");
    }
  },
  2 * Number(ttlMs),
);
