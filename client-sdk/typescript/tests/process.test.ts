// Tests of the locks of a program that is paused, blocked, ends, or has no free file descriptor.

import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";

import { acquireAndRelease, clientOf, PROMPT_MS, sharedBroker, waitForQueueLength } from "./fixtures.js";
import { Broker, HOME, nodeProgram, Program } from "./processes.js";

const TTL_MS = 2_000;
const LONG_MS = 20_000;

test("a paused program detects the loss at its first check", async (t) => {
  const { url } = await sharedBroker();
  const program = nodeProgram(t, "tests/programs/holder.js", url, t.name, String(TTL_MS));
  const token = Number((await program.waitForLine(/^held/)).split(" ")[1]);
  program.pause();
  const client = clientOf(t, url);
  const next = await client.acquire(t.name);
  assert(next.fencingToken > token);
  program.writeLine("check");
  program.resume();
  assert.equal(await program.waitForLine(/^valid/), "valid false true");
  assert.match(await program.waitForLine(/^lost/), /Expired|StoreLost/);
  assert.equal(program.lines.filter((line) => line.startsWith("lost")).length, 1);
  await next.release();
});

test("a program with a blocked event loop keeps its lock, and is warned", async (t) => {
  const { url } = await sharedBroker();
  const program = nodeProgram(t, "tests/programs/holder.js", url, t.name, String(TTL_MS));
  await program.waitForLine(/^held/);
  const client = clientOf(t, url);
  let isGranted = false;
  const next = client.acquire(t.name, { waitMs: 60_000 }).then((lease) => {
    isGranted = true;
    return lease;
  });
  await waitForQueueLength(client, t.name, 1);
  program.writeLine("block");
  assert.equal(await program.waitForLine(/^blocked/), "blocked true");
  assert(!isGranted);
  assert.match(await program.waitForLine(/^warned/), /the event loop was blocked for [56]\.\d s/);
  program.signal("SIGKILL");
  await (await next).release();
});

for (const [end, code] of [
  ["return", 0],
  ["throw", 1],
  ["exit", 3],
  ["release", 0],
] as const) {
  test(`a program that ends by ${end} releases its lock and exits`, async (t) => {
    const { url } = await sharedBroker();
    const program = nodeProgram(t, "tests/programs/holder.js", url, t.name, String(LONG_MS), end);
    assert.equal(await program.waitForExit(), code);
    await acquireAndRelease(clientOf(t, url), t.name, PROMPT_MS);
  });
}

test("a program whose broker is stalled exits in time", async (t) => {
  const broker = await Broker.start(t);
  const program = nodeProgram(t, "tests/programs/holder.js", broker.url, "a", String(LONG_MS));
  await program.waitForLine(/^held/);
  broker.program.pause();
  const startedAt = performance.now();
  program.closeInput();
  assert.equal(await program.waitForExit(), 0);
  const elapsedMs = performance.now() - startedAt;
  assert(elapsedMs >= 1_900 && elapsedMs < 2_000 + 2 * PROMPT_MS, String(elapsedMs));
  broker.program.resume();
});

test("a program without free file descriptors keeps its lock, and detects its loss", async (t) => {
  const broker = await Broker.start(t);
  const file = join(HOME, "build/tests/programs/starved.js");
  const script = `ulimit -n 100; exec "$@"`;
  const args = ["bash", "-c", script, "starve", process.execPath, file, broker.url, "a", String(TTL_MS)];
  const program = new Program(args);
  t.after(() => program.kill());
  assert.equal(await program.waitForLine(/^starved/), "starved true");
  await program.waitForLine(/^still/);
  await broker.kill();
  assert.equal(await program.waitForLine(/^lost/), "lost Expired false");
});
