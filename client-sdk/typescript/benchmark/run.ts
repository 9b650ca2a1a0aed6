// Acquires and releases locks with this client and with redlock on the same Redis, in turns, and prints tables.
//
//     benchmark/run.sh --rounds 5 --seconds 3
//
// LEASEHOLD_SERVER is the path of the broker. Results are meaningful only for a release build on an idle machine.

import { cpus } from "node:os";
import { parseArgs } from "node:util";

import { Client } from "@leasehold/client";
import { Redis as RedisClient } from "ioredis";
import Redlock from "redlock";

import { Broker, Redis } from "../tests/processes.js";

const CALLERS = [1, 64];
const TTL_MS = 10_000;
const WAIT_MS = 60_000;

/** Results of the callers of one round. */
class RoundResult {
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

  /** Records that a caller has acquired its lock. */
  recordAcquire(caller: number, waitedMs: number): void {
    this.longestWaitMs = Math.max(this.longestWaitMs, waitedMs);
    if (caller !== this.lastHolder) {
      this.handOffs += 1;
      this.lastHolder = caller;
    }
  }

  /** Number of pairs of acquire and release per second. */
  get perSecond(): number {
    return this.pairs.reduce((sum, count) => sum + count, 0) / this.seconds;
  }

  /** Jain's index: 1 if all callers held the lock equally often, 1 / callers if one caller always held it. */
  get fairness(): number {
    const sum = this.pairs.reduce((all, count) => all + count, 0);
    const squares = this.pairs.reduce((all, count) => all + count * count, 0);
    return squares === 0 ? 0 : sum ** 2 / (this.pairs.length * squares);
  }
}

/** A client that is measured. */
interface Contender {
  name: string;
  acquire(lock: string): Promise<{ release(): Promise<unknown> }>;
}

async function runRound(contender: Contender, callers: number, seconds: number, isHot: boolean): Promise<RoundResult> {
  const result = new RoundResult(callers, seconds);
  const deadline = performance.now() + seconds * 1000;
  const work = async (caller: number): Promise<void> => {
    const lock = isHot ? "bench/hot" : `bench/${String(caller)}`;
    let pairs = 0;
    while (performance.now() < deadline) {
      const requestedAt = performance.now();
      const lease = await contender.acquire(lock);
      result.recordAcquire(caller, performance.now() - requestedAt);
      await lease.release();
      pairs += 1;
    }
    result.pairs[caller] = pairs;
  };
  await Promise.all(result.pairs.map((_, caller) => work(caller)));
  return result;
}

async function measure(contenders: Contender[], rounds: number, seconds: number): Promise<void> {
  for (const isHot of [false, true]) {
    for (const callers of CALLERS) {
      const results = contenders.map(() => [] as RoundResult[]);
      for (let roundIndex = 0; roundIndex < rounds; roundIndex += 1) {
        for (const [index, contender] of contenders.entries()) {
          results[index]?.push(await runRound(contender, callers, seconds, isHot));
        }
      }
      const names = contenders.map(({ name }) => name);
      printTable(
        names,
        results,
        `${String(callers)} callers, ${isHot ? "one lock for all" : "a lock for each"}`,
        isHot,
      );
    }
  }
}

/** Prints the medians of the rounds. */
function printTable(names: string[], results: RoundResult[][], title: string, isHot: boolean): void {
  const headers = ["", "pairs/s", ...(isHot ? ["hand-offs/s", "longest wait", "Jain's index"] : [])];
  console.log(`\n${title}\n\n| ${headers.join(" | ")} |\n|${"---|".repeat(headers.length)}`);
  for (const [index, rounds] of results.entries()) {
    const cells = [names[index], formatInteger(median(rounds.map((one) => one.perSecond)))];
    if (isHot) {
      cells.push(
        formatInteger(median(rounds.map((one) => one.handOffs / one.seconds))),
        `${formatInteger(median(rounds.map((one) => one.longestWaitMs)))} ms`,
        median(rounds.map((one) => one.fairness)).toFixed(3),
      );
    }
    console.log(`| ${cells.join(" | ")} |`);
  }
}

function median(values: number[]): number {
  const sorted = values.toSorted((one, other) => one - other);
  const [low = 0, high = 0] = [sorted[Math.ceil(sorted.length / 2) - 1], sorted[Math.floor(sorted.length / 2)]];
  return (low + high) / 2;
}

function formatInteger(value: number): string {
  return Math.round(value).toLocaleString("en");
}

const { values } = parseArgs({
  options: { rounds: { type: "string", default: "5" }, seconds: { type: "string", default: "3" } },
});
const [cpu] = cpus();
console.log(
  `Node ${process.version}, ${String(cpus().length)} x ${cpu?.model ?? "?"}, medians of ${values.rounds} rounds`,
);
const store = await Redis.spawn();
const broker = await Broker.spawn(store.url);
const client = await new Client(broker.url).connect();
const redisClient = new RedisClient(store.port);
// Retries without limit, because Leasehold's callers also wait in the queue without limit.
const redlock = new Redlock([redisClient], { retryCount: -1 });
try {
  const leasehold = {
    name: "leasehold",
    acquire: (lock: string) => client.acquire(lock, { ttlMs: TTL_MS, waitMs: WAIT_MS }),
  };
  const other = { name: "redlock", acquire: (lock: string) => redlock.acquire([lock], TTL_MS) };
  await measure([leasehold, other], Number(values.rounds), Number(values.seconds));
} finally {
  await client.shutdown();
  redisClient.disconnect();
  await broker.kill();
  await store.kill();
}
