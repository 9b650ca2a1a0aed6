// Enters a critical section VISITS times and checks mutual exclusion with files: visitor URLS ORACLE_FILE VISITS.

import { appendFileSync, closeSync, openSync, readFileSync, unlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

import { Client } from "@leasehold/client";

const [urls = "", oracleFile = "", visits = ""] = process.argv.slice(2);
await using client = new Client(urls);
for (let visit = 1; visit <= Number(visits); visit += 1) {
  await client.using("a", async (lease) => {
    // Fails if another holder is in the critical section.
    closeSync(openSync(oracleFile, "wx"));
    const count = Number(readFileSync(join(dirname(oracleFile), "count"), "utf8"));
    await new Promise((resolve) => setImmediate(resolve));
    writeFileSync(join(dirname(oracleFile), "count"), String(count + 1));
    appendFileSync(join(dirname(oracleFile), "tokens"), `${String(lease.fencingToken)}\n`);
    unlinkSync(oracleFile);
  });
  console.log(`visit ${String(visit)}`);
}
