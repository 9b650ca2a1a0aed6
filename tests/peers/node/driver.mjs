// A peer in Node: node-redlock on one Redis. Arguments and output: tests/peers/README.md.
import Redis from "ioredis";
import Redlock from "redlock";
import { setTimeout as sleep } from "node:timers/promises";

const TTL_MS = 10_000;
const MOST = 20_000;

const [system, endpoint, scenario, callersText, warmUpText, measuredText] = process.argv.slice(2);
if (system !== "redlock") throw new Error(`no such system: ${system}`);
const [host, port] = endpoint.split(":");
const redis = new Redis({ host, port: Number(port), enableAutoPipelining: true });
// Retries after 200 ms plus or minus 200 ms, as in its documentation.
const redlock = new Redlock([redis], { retryCount: -1, retryDelay: 200, retryJitter: 200 });
redlock.on("error", () => {});

const callers = Number(callersText);
const begin = performance.now() + Number(warmUpText);
const end = begin + Number(measuredText);

function some(all) {
    return all.length <= MOST ? all : Array.from({ length: MOST }, (_, at) => all[Math.floor((at * all.length) / MOST)]);
}

async function told() {
    await sleep(Math.max(0, begin - performance.now()));
    console.log("begin");
}

// Exits only after the output was written, because an exit would discard output that is still buffered.
function last(told) {
    process.stdout.write(`${JSON.stringify(told)}\n`, () => process.exit(0));
}

async function pairs() {
    const latencies = [];
    const caller = async (at) => {
        for (let sent = performance.now(); sent < end; sent = performance.now()) {
            const lock = await redlock.acquire([`pairs-${at}`], TTL_MS);
            await lock.release();
            if (sent >= begin) latencies.push(Math.round((performance.now() - sent) * 1e3));
        }
    };
    await Promise.all([told(), ...Array.from({ length: callers }, (_, at) => caller(at))]);
    return { done: latencies.length, latencies_us: some(latencies), counts: [], longest_wait_us: 0 };
}

// Returns the result at the end of the measured time. Callers that still wait are abandoned.
async function hot() {
    const latencies = [];
    const counts = new Array(callers).fill(0);
    let last = -1;
    let released = 0;
    let longest = 0;
    const caller = async (at) => {
        for (;;) {
            const sent = performance.now();
            const lock = await redlock.acquire([`hot-${process.pid}`], TTL_MS);
            const granted = performance.now();
            if (granted >= begin && granted < end) {
                if (last !== at && last >= 0) latencies.push(Math.round((granted - released) * 1e3));
                counts[at] += 1;
                longest = Math.max(longest, granted - sent);
            }
            last = at;
            released = performance.now();
            await lock.release();
        }
    };
    for (let at = 0; at < callers; at++) void caller(at);
    await told();
    await sleep(end - performance.now());
    return { done: latencies.length, latencies_us: some(latencies), counts, longest_wait_us: Math.round(longest * 1e3) };
}

switch (scenario) {
    case "pairs":
        last(await pairs());
        break;
    case "hot":
        last(await hot());
        break;
    case "hold":
        await redlock.acquire(["crash"], TTL_MS);
        console.log("held");
        setInterval(() => {}, 1 << 30);
        break;
    case "wait":
        console.log("waiting");
        await redlock.acquire(["crash"], TTL_MS);
        console.log("granted");
        process.exit(0);
        break;
    default:
        throw new Error(`no such scenario: ${scenario}`);
}
