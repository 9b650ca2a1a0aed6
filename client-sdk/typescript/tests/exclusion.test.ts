// Tests of mutual exclusion: clients in several tasks and processes acquire one lock, each with a higher fencing token.

import assert from "node:assert/strict";
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { clientOf } from "./fixtures.js";
import { Broker, nodeProgram, Redis } from "./processes.js";

const VISITS = 25;

test("tasks of several clients exclude each other", async (t) => {
  const redis = await Redis.start(t);
  const brokers = [await Broker.start(t, redis.url), await Broker.start(t, redis.url)];
  const clients = brokers.flatMap(({ url }) => [clientOf(t, url), clientOf(t, url)]);
  let [inside, newest, visits] = [0, 0, 0];
  const visit = async (index: number) => {
    for (let round = 0; round < VISITS; round += 1) {
      await clients[index % clients.length]?.using("a", async (lease) => {
        inside += 1;
        assert.equal(inside, 1, "two holders at a time");
        assert(lease.fencingToken > newest, "the fencing token did not rise");
        newest = lease.fencingToken;
        await new Promise((resolve) => setImmediate(resolve));
        assert(lease.isValid());
        inside -= 1;
        visits += 1;
      });
    }
  };
  await Promise.all(Array.from({ length: 12 }, (_, index) => visit(index)));
  assert.equal(visits, 12 * VISITS);
});

test("processes exclude each other while their broker is killed", async (t) => {
  const redis = await Redis.start(t);
  const [one, two] = [await Broker.start(t, redis.url), await Broker.start(t, redis.url)];
  const dir = mkdtempSync(join(tmpdir(), "leasehold-oracle-"));
  t.after(() => {
    rmSync(dir, { recursive: true });
  });
  // The holder creates the file exclusively; a second holder at the same time would fail.
  const oracleFile = join(dir, "inside");
  closeSync(openSync(join(dir, "tokens"), "w"));
  writeFileSync(join(dir, "count"), "0");
  const urls = `${one.url},${two.url}`;
  const programs = [0, 1, 2].map(() => nodeProgram(t, "tests/programs/visitor.js", urls, oracleFile, String(VISITS)));
  await Promise.all(programs.map((program) => program.waitForLine(/visit 3$/)));
  await one.kill();
  assert.deepEqual(await Promise.all(programs.map((program) => program.waitForExit())), [0, 0, 0]);
  const tokens = readFileSync(join(dir, "tokens"), "utf8").trim().split("\n").map(Number);
  assert.equal(tokens.length, 3 * VISITS);
  assert.deepEqual(
    tokens,
    tokens.toSorted((a, b) => a - b),
  );
  assert.equal(readFileSync(join(dir, "count"), "utf8"), String(3 * VISITS), "an update was lost");
});
