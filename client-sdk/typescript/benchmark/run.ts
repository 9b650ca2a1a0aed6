// Takes and gives back locks beside redlock on the same Redis, in turns; prints tables.
//
//     benchmark/run.sh --rounds 5 --seconds 3
//
// LEASEHOLD_SERVER names the broker; a figure is worth something only of a release build on a quiet machine.

import { cpus } from "node:os";
import { parseArgs } from "node:util";

import { Client } from "@leasehold/client";
import { Redis as RedisClient } from "ioredis";
import Redlock from "redlock";

import { Broker, Redis } from "../tests/processes.js";

const CALLERS = [1, 64];
const TTL_MS = 10_000;
const PATIENCE_MS = 60_000;

/** What the callers of one round have done. */
class Visits {
  longestWaitMs = 0;
  handOffs = 0;
  readonly pairs: number[];
  private lastHolder = -1;

  constructor(
    callers: number,
    readonly seconds: number,
  ) {
    this.pairs = Array.from({ length: callers }, () => 0);
  }

  /** A caller has its lock. */
  entered(caller: number, waitedMs: number): void {
    this.longestWaitMs = Math.max(this.longestWaitMs, waitedMs);
    if (caller !== this.lastHolder) {
      this.handOffs += 1;
      this.lastHolder = caller;
    }
  }

  /** Acquires with their releases. */
  get perSecond(): number {
    return this.pairs.reduce((sum, count) => sum + count, 0) / this.seconds;
  }

  /** Jain's index: 1 if all had it as often, 1 / callers if one had it always. */
  get fairness(): number {
    const sum = this.pairs.reduce((all, count) => all + count, 0);
    const squares = this.pairs.reduce((all, count) => all + count * count, 0);
    return squares === 0 ? 0 : sum ** 2 / (this.pairs.length * squares);
  }
}

/** One way to take locks. */
interface Contender {
  name: string;
  acquire(lock: string): Promise<{ release(): Promise<unknown> }>;
}

async function round(contender: Contender, callers: number, seconds: number, isHot: boolean): Promise<Visits> {
  const visits = new Visits(callers, seconds);
  const until = performance.now() + seconds * 1000;
  const work = async (caller: number): Promise<void> => {
    const lock = isHot ? "bench/hot" : `bench/${String(caller)}`;
    let pairs = 0;
    while (performance.now() < until) {
      const asked = performance.now();
      const held = await contender.acquire(lock);
      visits.entered(caller, performance.now() - asked);
      await held.release();
      pairs += 1;
    }
    visits.pairs[caller] = pairs;
  };
  await Promise.all(visits.pairs.map((_, caller) => work(caller)));
  return visits;
}

async function measure(contenders: Contender[], rounds: number, seconds: number): Promise<void> {
  for (const isHot of [false, true]) {
    for (const callers of CALLERS) {
      const found = contenders.map(() => [] as Visits[]);
      for (let turn = 0; turn < rounds; turn += 1) {
        for (const [place, contender] of contenders.entries()) {
          found[place]?.push(await round(contender, callers, seconds, isHot));
        }
      }
      const names = contenders.map(({ name }) => name);
      printTable(names, found, `${String(callers)} callers, ${isHot ? "one lock for all" : "a lock for each"}`, isHot);
    }
  }
}

/** Medians of the rounds. */
function printTable(names: string[], found: Visits[][], title: string, isHot: boolean): void {
  const heads = ["", "pairs/s", ...(isHot ? ["hand-offs/s", "longest wait", "Jain's index"] : [])];
  console.log(`\n${title}\n\n| ${heads.join(" | ")} |\n|${"---|".repeat(heads.length)}`);
  for (const [place, rounds] of found.entries()) {
    const cells = [names[place], whole(median(rounds.map((one) => one.perSecond)))];
    if (isHot) {
      cells.push(
        whole(median(rounds.map((one) => one.handOffs / one.seconds))),
        `${whole(median(rounds.map((one) => one.longestWaitMs)))} ms`,
        median(rounds.map((one) => one.fairness)).toFixed(3),
      );
    }
    console.log(`| ${cells.join(" | ")} |`);
  }
}

function median(figures: number[]): number {
  const sorted = figures.toSorted((one, other) => one - other);
  const [low = 0, high = 0] = [sorted[Math.ceil(sorted.length / 2) - 1], sorted[Math.floor(sorted.length / 2)]];
  return (low + high) / 2;
}

function whole(figure: number): string {
  return Math.round(figure).toLocaleString("en");
}

const { values } = parseArgs({
  options: { rounds: { type: "string", default: "5" }, seconds: { type: "string", default: "3" } },
});
const [cpu] = cpus();
console.log(
  `Node ${process.version}, ${String(cpus().length)} x ${cpu?.model ?? "?"}, medians of ${values.rounds} rounds`,
);
const store = await Redis.free();
const broker = await Broker.free(store.url);
const client = await new Client(broker.url).connect();
const plain = new RedisClient(store.port);
// For ever: Leasehold's callers wait in line as long as it takes, too.
const redlock = new Redlock([plain], { retryCount: -1 });
try {
  const leasehold = {
    name: "leasehold",
    acquire: (lock: string) => client.acquire(lock, { ttlMs: TTL_MS, waitMs: PATIENCE_MS }),
  };
  const other = { name: "redlock", acquire: (lock: string) => redlock.acquire([lock], TTL_MS) };
  await measure([leasehold, other], Number(values.rounds), Number(values.seconds));
} finally {
  await client.shutdown();
  plain.disconnect();
  await broker.kill();
  await store.kill();
}
