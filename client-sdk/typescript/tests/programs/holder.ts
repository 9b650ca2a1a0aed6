// Takes a lock and does what it is told, a word a line: holder URL LOCK TTL_MS [END].

import { createInterface } from "node:readline";

import { Client } from "@leasehold/client";

const [url = "", lock = "", ttlMs = "", end = "stay"] = process.argv.slice(2);
const client = new Client(url, {
  warn: (message) => {
    console.log(`warned ${message}`);
  },
});
const lease = await client.acquire(lock, { ttlMs: Number(ttlMs) });
lease.signal.addEventListener("abort", () => {
  console.log(`told ${String(lease.lostReason)}`);
});
console.log(`held ${String(lease.fencingToken)}`);

if (end === "stay") {
  createInterface({ input: process.stdin }).on("line", (word) => {
    if (word === "ask") {
      console.log(`valid ${String(lease.isValid())} ${String(lease.signal.aborted)}`);
    } else if (word === "block") {
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
