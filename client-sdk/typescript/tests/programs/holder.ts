// Acquires a lock and executes commands, one word per line: holder URL LOCK TTL_MS [END].

import { createInterface } from "node:readline";

import { Client } from "@leasehold/client";

const [url = "", lock = "", ttlMs = "", end = "wait"] = process.argv.slice(2);
const client = new Client(url, {
  warn: (message) => {
    console.log(`warned ${message}`);
  },
});
const lease = await client.acquire(lock, { ttlMs: Number(ttlMs) });
lease.signal.addEventListener("abort", () => {
  console.log(`lost ${String(lease.lostReason)}`);
});
console.log(`held ${String(lease.fencingToken)}`);

if (end === "wait") {
  createInterface({ input: process.stdin }).on("line", (command) => {
    if (command === "check") {
      console.log(`valid ${String(lease.isValid())} ${String(lease.signal.aborted)}`);
    } else if (command === "block") {
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3 * Number(ttlMs));
      console.log(`blocked ${String(lease.isValid())}`);
    }
  });
} else if (end === "throw") {
  throw new Error("of the program");
} else if (end === "exit") {
  process.exit(3);
} else if (end === "release") {
  await lease.release();
}
