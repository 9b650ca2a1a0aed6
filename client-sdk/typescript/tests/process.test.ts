// What a program's own life means to its locks.

import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";

import { Broker, HOME, nodeProgram, Program } from "./processes.js";
import { clientOf, inLine, sharedBroker, SOON_MS, takes } from "./site.js";

const TTL_MS = 2_000;
const LONG_MS = 20_000;

test("a program that stood still knows at its first question", async (t) => {
  const { url } = await sharedBroker();
  const program = nodeProgram(t, "tests/programs/holder.js", url, t.name, String(TTL_MS));
  const token = Number((await program.line(/^held/)).split(" ")[1]);
  program.pause();
  const client = clientOf(t, url);
  const next = await client.acquire(t.name);
  assert(next.fencingToken > token);
  program.say("ask");
  program.resume();
  assert.equal(await program.line(/^valid/), "valid false true");
  assert.match(await program.line(/^told/), /Expired|StoreLost/);
  assert.equal(program.lines.filter((line) => line.startsWith("told")).length, 1);
  await next.release();
});

test("a program that computes keeps its lock, and is warned", async (t) => {
  const { url } = await sharedBroker();
  const program = nodeProgram(t, "tests/programs/holder.js", url, t.name, String(TTL_MS));
  await program.line(/^held/);
  const client = clientOf(t, url);
  let isGranted = false;
  const next = client.acquire(t.name, { waitMs: 60_000 }).then((lease) => {
    isGranted = true;
    return lease;
  });
  await inLine(client, t.name, 1);
  program.say("block");
  assert.equal(await program.line(/^blocked/), "blocked true");
  assert(!isGranted);
  assert.match(await program.line(/^warned/), /the event loop stood still for [56]\.\d s/);
  program.signal("SIGKILL");
  await (await next).release();
});

for (const [end, code] of [
  ["return", 0],
  ["throw", 1],
  ["exit", 3],
  ["release", 0],
] as const) {
  test(`a program that ends by ${end} gives back, and nothing keeps it alive`, async (t) => {
    const { url } = await sharedBroker();
    const program = nodeProgram(t, "tests/programs/holder.js", url, t.name, String(LONG_MS), end);
    assert.equal(await program.ended(), code);
    await takes(clientOf(t, url), t.name, SOON_MS);
  });
}

test("a program whose broker stands still ends in time", async (t) => {
  const broker = await Broker.start(t);
  const program = nodeProgram(t, "tests/programs/holder.js", broker.url, "a", String(LONG_MS));
  await program.line(/^held/);
  broker.program.pause();
  const begun = performance.now();
  program.close();
  assert.equal(await program.ended(), 0);
  const took = performance.now() - begun;
  assert(took >= 1_900 && took < 2_000 + 2 * SOON_MS, String(took));
  broker.program.resume();
});

test("a program without a file descriptor left keeps its lock, and knows when it is lost", async (t) => {
  const broker = await Broker.start(t);
  const file = join(HOME, "build/tests/programs/starved.js");
  const starve = `ulimit -n 100; exec "$@"`;
  const words = ["bash", "-c", starve, "starve", process.execPath, file, broker.url, "a", String(TTL_MS)];
  const program = new Program(words);
  t.after(() => program.kill());
  assert.equal(await program.line(/^starved/), "starved true");
  await program.line(/^still/);
  await broker.kill();
  assert.equal(await program.line(/^told/), "told Expired false");
});
