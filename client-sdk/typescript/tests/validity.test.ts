// Tests of the validity of leases: the clock, and the memory that threads share.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Worker } from "node:worker_threads";

import type { Clock } from "#dist/clock.js";
import { clockOf, createSharedClock, SuspendAwareClock } from "#dist/clock.js";
import { LeaseValidity, safetyMarginMs } from "#dist/validity.js";

const TTL_MS = 10_000;

/** Returns a clock whose time a test sets. */
function manualClock(): Clock & { time: number } {
  return {
    time: 1_000,
    now() {
      return this.time;
    },
    latest() {
      return this.time;
    },
  };
}

test("the safety margin is a tenth, at least half a second and at most a quarter", () => {
  assert.deepEqual([60_000, 4_000, 1_000].map(safetyMarginMs), [6_000, 500, 250]);
});

test("the validity ends a safety margin before the lease's ttl has passed", () => {
  const clock = manualClock();
  const validity = LeaseValidity.start(clock.time + TTL_MS, TTL_MS, clock);
  assert.equal(validity.remainingMs(), TTL_MS - 1_000);
  clock.time += TTL_MS - 1_001;
  assert(validity.isValid());
  clock.time += 1;
  assert(!validity.isValid());
  assert.deepEqual([validity.remainingMs(), validity.lostReason()], [0, "Expired"]);
});

test("an ended validity is not extended by a clock reading from before its end", () => {
  const clock = manualClock();
  const validity = LeaseValidity.start(clock.time + TTL_MS, TTL_MS, clock);
  clock.time += TTL_MS;
  assert(!validity.isValid());
  clock.time -= TTL_MS;
  assert(!validity.extend(clock.time + TTL_MS, TTL_MS));
  assert(!validity.isValid(), "the validity started again");
});

test("an extension after the end does not restart the validity", () => {
  const clock = manualClock();
  const validity = LeaseValidity.start(clock.time + TTL_MS, TTL_MS, clock);
  clock.time += TTL_MS;
  assert(!validity.extend(clock.time + TTL_MS, TTL_MS) && !validity.isValid());
});

test("an extension never shortens the validity, and the first reason stays", () => {
  const clock = manualClock();
  const validity = LeaseValidity.start(clock.time + TTL_MS, TTL_MS, clock);
  assert(validity.extend(clock.time + TTL_MS / 2, TTL_MS / 2));
  assert.equal(validity.remainingMs(), TTL_MS - 1_000);
  validity.end("StoreLost");
  validity.end("Expired");
  assert.deepEqual([validity.isValid(), validity.lostReason()], [false, "StoreLost"]);
});

test("the end of the validity in one thread is the end in all threads", async () => {
  const clock = clockOf(createSharedClock());
  const validity = LeaseValidity.start(clock.now() + TTL_MS, TTL_MS, clock);
  const code = `
    import { workerData } from "node:worker_threads";
    const { LeaseValidity } = await import(workerData.validity);
    const { clockOf, createSharedClock } = await import(workerData.clock);
    new LeaseValidity(workerData.sharedMemory, clockOf(createSharedClock())).end("Revoked");
  `;
  const workerData = {
    validity: import.meta.resolve("#dist/validity.js"),
    clock: import.meta.resolve("#dist/clock.js"),
    sharedMemory: validity.sharedMemory,
  };
  const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(code)}`), { workerData });
  // Polls without the event loop.
  const deadline = performance.now() + 10_000;
  while (validity.isValid() && performance.now() < deadline);
  assert.equal(validity.lostReason(), "Revoked");
  await worker.terminate();
});

test("the clock never goes back, and its two readings enclose the present", () => {
  const clock = clockOf(createSharedClock());
  let previous = 0;
  for (let reading = 0; reading < 2_000; reading += 1) {
    const [before, latest, after] = [clock.now(), clock.latest(), clock.now()];
    assert(before >= previous && before <= after && latest >= before && latest <= after + 10.5);
    previous = after;
  }
});

test("without a clock that runs during a suspend, the larger step of two clocks counts", () => {
  const readings = { monotonic: 1_000, wall: 50_000 };
  const shared = new SharedArrayBuffer(32);
  const clock = () =>
    new SuspendAwareClock(
      shared,
      () => readings.monotonic,
      () => readings.wall,
    );
  const [one, other] = [clock(), clock()];
  const startedAt = one.now();
  Object.assign(readings, { monotonic: 1_001, wall: 350_000 });
  assert.equal(other.now() - startedAt, 300_000, "a suspend was not counted");
  Object.assign(readings, { monotonic: 1_002, wall: 1_000 });
  assert.equal(one.now() - startedAt, 300_001, "a wall clock that is set back stopped the clock");
  Object.assign(readings, { monotonic: 1_003, wall: 301_000 });
  assert.equal(other.latest() - startedAt, 600_001, "a suspend after that was not counted");
});
