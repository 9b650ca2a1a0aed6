// Plays the scenarios of the suite: one JSON command a line in, one JSON line out for each answer and each event. The
// protocol is in tests/suite/README.md.

import { readFileSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";

import type { AcquireOptions, Holder, Lease, LostReason, Place, Target } from "@leasehold/client";
import { Client, ConnectError, LeaseholdError, LeaseLostError } from "@leasehold/client";

import { clockOf, shareClock } from "#dist/clock.js";

const PROTOCOL_FAULT = 101;

interface WireTarget {
  name: string;
  namespace?: string | null;
  mode?: string | null;
  permits?: number;
  limit?: number | null;
}

interface Command {
  id: number;
  do: string;
  as: string;
  targets: WireTarget[];
  lease: string;
  call: number;
  lock: string;
  ms: number;
  under?: string | null;
  reason?: string | null;
  ttl_ms?: number | null;
  wait_ms?: number | null;
  max_hold_ms?: number | null;
  lock_delay_ms?: number | null;
  disconnect_grace_ms?: number | null;
}

interface Kept {
  lease: Lease;
  targets: Target[];
}

const clock = clockOf(shareClock());
const leases = new Map<string, Kept>();
/** The acquires under way. */
const open = new Map<number, AbortController>();

type Deed = (client: Client, command: Command) => unknown;

const DEEDS: Partial<Record<string, Deed>> = {
  version: () => ({ language: "typescript", version: packageVersion() }),
  acquire: async (client, command) => {
    const targets = command.targets.map(target);
    const [first] = targets;
    const isOne = first !== undefined && targets.length === 1;
    const options = settings(command);
    return keep(command, isOne ? await client.acquire(first, options) : await client.acquireAll(targets, options));
  },
  try_acquire: async (client, command) => {
    const targets = command.targets.map(target);
    const lease = await client.tryAcquireAll(targets, settings(command));
    return lease && keep(command, lease);
  },
  cancel: (_, command) => {
    // It may have ended by now.
    open.get(command.call)?.abort();
    return {};
  },
  release: async (_, command) => {
    await kept(command.lease).lease.release();
    return {};
  },
  state: (_, command) => state(kept(command.lease)),
  observe: async (client, command) => {
    const leader = await client.elect(command.lock).observe().next();
    return { holder: leader && shown(leader) };
  },
  block: (_, command) => {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, command.ms);
    return {};
  },
  shutdown: async (client) => {
    await client.shutdown();
    return {};
  },
  exit: () => {
    // Releases and hooks of exit are left out.
    process.removeAllListeners("exit");
    process.exit(0);
  },
};

async function obey(client: Client, command: Command): Promise<void> {
  const deed = DEEDS[command.do];
  if (deed === undefined) {
    throw new Error(`no such command: ${command.do}`);
  }
  const before = clock.now();
  try {
    const ok = await deed(client, command);
    answer(command, command.do === "state" ? before : clock.now(), { ok });
  } catch (error) {
    answer(command, clock.now(), { error: failure(error) });
  } finally {
    open.delete(command.id);
  }
}

function settings(command: Command): AcquireOptions {
  const controller = new AbortController();
  open.set(command.id, controller);
  return {
    signal: controller.signal,
    ttlMs: command.ttl_ms ?? undefined,
    waitMs: command.wait_ms ?? undefined,
    maxHoldMs: command.max_hold_ms ?? undefined,
    lockDelayMs: command.lock_delay_ms ?? undefined,
    disconnectGraceMs: command.disconnect_grace_ms ?? undefined,
    reason: command.reason ?? undefined,
    under: typeof command.under === "string" ? kept(command.under).lease : undefined,
    onQueue: (place: Place) => {
      const at_ms = clock.now();
      const { position, queueLength: queue_length } = place;
      const holders = place.holders.map(shown);
      say({ event: "queued", at_ms, call: command.id, position, queue_length, holders });
    },
    onLost: (lease: Lease) => {
      say({ event: "lost", at_ms: clock.now(), lease: command.as, reason: reasonOf(lease) });
    },
  };
}

function target({ name, namespace, mode, permits, limit }: WireTarget): Target {
  const where = { name, namespace: namespace ?? undefined };
  if (mode === "semaphore") {
    return { ...where, permits, limit: limit ?? undefined };
  }
  return { ...where, shared: mode === "shared" };
}

function keep(command: Command, lease: Lease): unknown {
  const one = { lease, targets: command.targets.map(target) };
  leases.set(command.as, one);
  return state(one);
}

function kept(name: string): Kept {
  const found = leases.get(name);
  if (found === undefined) {
    throw new Error(`no lease ${name}`);
  }
  return found;
}

function state({ lease, targets }: Kept): unknown {
  return {
    valid: lease.isValid(),
    lease_id: lease.leaseId,
    tokens: targets.map((one) => lease.fencingTokenOf(one)),
    remaining_ms: lease.remainingMs(),
    lost_reason: reasonOf(lease),
  };
}

function reasonOf(lease: Lease): LostReason | null {
  return lease.lostReason;
}

function shown(one: Holder): unknown {
  const { leaseId: lease_id, owner, reason, fencingToken: token, remainingMs: remaining_ms } = one;
  return { lease_id, owner, reason, token, remaining_ms };
}

function failure(error: unknown): unknown {
  if (error instanceof LeaseholdError) {
    return {
      class: error.code,
      message: error.message,
      holders: error.holders.map(shown),
      retry_after_ms: error.retryAfterMs,
      reason: error instanceof LeaseLostError ? error.reason : undefined,
    };
  }
  if (error instanceof DOMException && error.name === "AbortError") {
    return { class: "Cancelled", message: error.message };
  }
  throw error;
}

function answer(command: Command, at_ms: number, outcome: object): void {
  say({ id: command.id, at_ms, ...outcome });
}

function say(line: unknown): void {
  // At once, and not when the event loop has time.
  writeSync(1, `${JSON.stringify(line)}\n`);
}

function packageVersion(): string {
  const text = readFileSync(new URL("../../package.json", import.meta.url), "utf8");
  return (JSON.parse(text) as { version: string }).version;
}

function file(name: string): string | undefined {
  const path = process.env[name];
  return path === undefined ? undefined : readFileSync(path, "utf8");
}

/** Nothing that goes wrong may look like an answer that is late. */
function fault(what: string): void {
  process.stderr.write(`${what}\n`);
  process.removeAllListeners("exit");
  process.exit(PROTOCOL_FAULT);
}

function log(): void {
  const level = process.env["LEASEHOLD_LOG"];
  if (level !== undefined) {
    process.env["NODE_DEBUG"] = "leasehold";
  }
  if (level === "trace") {
    process.env["GRPC_TRACE"] = "all";
    process.env["GRPC_VERBOSITY"] = "DEBUG";
  }
}

async function main(): Promise<void> {
  log();
  // The clock knows its place between two steps of the kernel's once it has seen one of them begin.
  const begun = performance.now();
  while (performance.now() < begun + 20) {
    clock.now();
  }
  let client: Client;
  try {
    client = new Client(process.env["LEASEHOLD_ENDPOINTS"] ?? "", {
      owner: process.env["LEASEHOLD_OWNER"],
      bearerToken: process.env["LEASEHOLD_BEARER_TOKEN"],
      bearerTokenFile: process.env["LEASEHOLD_BEARER_TOKEN_FILE"],
      allowInsecureToken: process.env["LEASEHOLD_ALLOW_INSECURE_TOKEN"] !== undefined,
      tls: { ca: file("LEASEHOLD_TLS_CA"), cert: file("LEASEHOLD_TLS_CERT"), key: file("LEASEHOLD_TLS_KEY") },
      warn: (message) => {
        process.stderr.write(`${message}\n`);
        if (message.startsWith("a fault")) {
          fault(message);
        }
      },
    });
    await client.connect();
  } catch (error) {
    if (error instanceof ConnectError) {
      say({ event: "failed", at_ms: clock.now(), error: failure(error) });
      process.exitCode = 1;
      return;
    }
    throw error;
  }
  say({ event: "ready", at_ms: clock.now() });
  // No shutdown at the end: what is held is given back by the client's hook at the exit of the process.
  createInterface({ input: process.stdin }).on("line", (line) => {
    void obey(client, JSON.parse(line) as Command);
  });
}

process.on("unhandledRejection", (error) => {
  fault(error instanceof Error ? (error.stack ?? error.message) : String(error));
});
await main();
