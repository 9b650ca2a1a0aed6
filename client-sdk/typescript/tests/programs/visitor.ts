// Enters a place where only one may be, so many times: visitor URLS WITNESS VISITS.

import { appendFileSync, closeSync, openSync, readFileSync, unlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

import { Client } from "@leasehold/client";

const [urls = "", witness = "", visits = ""] = process.argv.slice(2);
await using client = new Client(urls);
for (let visit = 1; visit <= Number(visits); visit += 1) {
  await client.using("a", async (lease) => {
    // Fails if somebody is inside.
    closeSync(openSync(witness, "wx"));
    const count = Number(readFileSync(join(dirname(witness), "count"), "utf8"));
    await new Promise((resolve) => setImmediate(resolve));
    writeFileSync(join(dirname(witness), "count"), String(count + 1));
    appendFileSync(join(dirname(witness), "tokens"), `${String(lease.fencingToken)}\n`);
    unlinkSync(witness);
  });
  console.log(`visit ${String(visit)}`);
}
