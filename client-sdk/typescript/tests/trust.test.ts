// What a lease's validity is counted with: the clock, and the trust that threads share.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Worker } from "node:worker_threads";

import type { Clock } from "#dist/clock.js";
import { clockOf, Larger, shareClock } from "#dist/clock.js";
import { marginMs, Trust } from "#dist/trust.js";

const TTL_MS = 10_000;

/** A clock that is set by hand. */
function handClock(): Clock & { at: number } {
  return {
    at: 1_000,
    now() {
      return this.at;
    },
    latest() {
      return this.at;
    },
  };
}

test("the margin is a tenth, but at least half a second and at most a quarter", () => {
  assert.deepEqual([60_000, 4_000, 1_000].map(marginMs), [6_000, 500, 250]);
});

test("trust ends a margin before the validity", () => {
  const clock = handClock();
  const trust = Trust.begin(clock.at + TTL_MS, TTL_MS, clock);
  assert.equal(trust.remainingMs(), TTL_MS - 1_000);
  clock.at += TTL_MS - 1_001;
  assert(trust.isValid());
  clock.at += 1;
  assert(!trust.isValid());
  assert.deepEqual([trust.remainingMs(), trust.lostReason()], [0, "Expired"]);
});

test("once over it is not extended, though its time was read before the confirmation", () => {
  const clock = handClock();
  const trust = Trust.begin(clock.at + TTL_MS, TTL_MS, clock);
  clock.at += TTL_MS;
  assert(!trust.isValid());
  clock.at -= TTL_MS;
  assert(!trust.extend(clock.at + TTL_MS, TTL_MS));
  assert(!trust.isValid(), "it is latched");
});

test("an extension that finds the time over does not revive it", () => {
  const clock = handClock();
  const trust = Trust.begin(clock.at + TTL_MS, TTL_MS, clock);
  clock.at += TTL_MS;
  assert(!trust.extend(clock.at + TTL_MS, TTL_MS) && !trust.isValid());
});

test("an extension never shortens, and the first reason stays", () => {
  const clock = handClock();
  const trust = Trust.begin(clock.at + TTL_MS, TTL_MS, clock);
  assert(trust.extend(clock.at + TTL_MS / 2, TTL_MS / 2));
  assert.equal(trust.remainingMs(), TTL_MS - 1_000);
  trust.end("StoreLost");
  trust.end("Expired");
  assert.deepEqual([trust.isValid(), trust.lostReason()], [false, "StoreLost"]);
});

test("the end in one thread is the end in all", async () => {
  const clock = clockOf(shareClock());
  const trust = Trust.begin(clock.now() + TTL_MS, TTL_MS, clock);
  const code = `
    import { workerData } from "node:worker_threads";
    const { Trust } = await import(workerData.trust);
    const { clockOf, shareClock } = await import(workerData.clock);
    new Trust(workerData.shared, clockOf(shareClock())).end("Revoked");
  `;
  const workerData = {
    trust: import.meta.resolve("#dist/trust.js"),
    clock: import.meta.resolve("#dist/clock.js"),
    shared: trust.shared,
  };
  const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(code)}`), { workerData });
  // Without the event loop.
  const until = performance.now() + 10_000;
  while (trust.isValid() && performance.now() < until);
  assert.equal(trust.lostReason(), "Revoked");
  await worker.terminate();
});

test("the clock goes on, and its two readings lie around the moment", () => {
  const clock = clockOf(shareClock());
  let last = 0;
  for (let look = 0; look < 2_000; look += 1) {
    const [before, latest, after] = [clock.now(), clock.latest(), clock.now()];
    assert(before >= last && before <= after && latest >= before && latest <= after + 10.5);
    last = after;
  }
});

test("where no clock runs through a suspend, the larger step of two counts", () => {
  const readings = { monotonic: 1_000, wall: 50_000 };
  const shared = new SharedArrayBuffer(32);
  const clock = () =>
    new Larger(
      shared,
      () => readings.monotonic,
      () => readings.wall,
    );
  const [one, other] = [clock(), clock()];
  const begun = one.now();
  Object.assign(readings, { monotonic: 1_001, wall: 350_000 });
  assert.equal(other.now() - begun, 300_000, "a suspend, whoever looks");
  Object.assign(readings, { monotonic: 1_002, wall: 1_000 });
  assert.equal(one.now() - begun, 300_001, "a wall clock that is set back does not stop it");
  Object.assign(readings, { monotonic: 1_003, wall: 301_000 });
  assert.equal(other.latest() - begun, 600_001, "and a suspend after that counts");
});
