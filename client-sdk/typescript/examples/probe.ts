// Executes the scenarios of the suite: reads one JSON command per line, and writes one JSON line for each response and
// each event. The protocol is in tests/suite/README.md.

import { readFileSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";

import type {
  AcquireOptions,
  Closure,
  ClosureCause,
  Holder,
  Lease,
  LostReason,
  PermitUsage,
  QueuePosition,
  Target,
} from "@leasehold/client";
import { Client, ConnectError, LeaseholdError, LeaseLostError } from "@leasehold/client";

import { clockOf, createSharedClock } from "#dist/clock.js";

const PROTOCOL_FAULT = 101;
const CLOSURE_CAUSES: Record<ClosureCause, string> = {
  LockDelay: "lock_delay",
  AtLeast: "at_least",
  Operator: "operator",
  Other: "other",
};

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
  limit?: number | null;
  ms: number;
  under?: string | null;
  reason?: string | null;
  ttl_ms?: number | null;
  wait_ms?: number | null;
  max_hold_ms?: number | null;
  lock_delay_ms?: number | null;
  disconnect_grace_ms?: number | null;
  at_least_ms?: number | null;
}

interface NamedLease {
  lease: Lease;
  targets: Target[];
}

const clock = clockOf(createSharedClock());
const leases = new Map<string, NamedLease>();
/** Abort controllers of the pending acquires, by command id. */
const pendingControllers = new Map<number, AbortController>();

type Action = (client: Client, command: Command) => unknown;

const ACTIONS: Partial<Record<string, Action>> = {
  version: () => ({ language: "typescript", version: packageVersion() }),
  acquire: async (client, command) => {
    const targets = command.targets.map(targetOf);
    const [first] = targets;
    const isOne = first !== undefined && targets.length === 1;
    const options = acquireOptions(command);
    return storeLease(
      command,
      isOne ? await client.acquire(first, options) : await client.acquireAll(targets, options),
    );
  },
  try_acquire: async (client, command) => {
    const targets = command.targets.map(targetOf);
    const lease = await client.tryAcquireAll(targets, acquireOptions(command));
    return lease && storeLease(command, lease);
  },
  cancel: (_, command) => {
    // The acquire may have ended before.
    pendingControllers.get(command.call)?.abort();
    return {};
  },
  release: async (_, command) => {
    await leaseNamed(command.lease).lease.release();
    return {};
  },
  state: (_, command) => leaseState(leaseNamed(command.lease)),
  observe: async (client, command) => {
    const leader = await client.elect(command.lock).observe().next();
    const state = await client.get(command.lock);
    return {
      holder: leader && holderFields(leader),
      closure: closureFields(state?.closure),
      permit_usage: permitUsageFields(state?.permitUsage),
    };
  },
  set_limit: async (client, command) => {
    const limit = command.limit ?? 0;
    return { previous_limit: await client.setLimit(command.lock, limit === 0 ? null : limit) };
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
    // The exit skips the client's exit handler, which would release the locks.
    process.removeAllListeners("exit");
    process.exit(0);
  },
};

async function runCommand(client: Client, command: Command): Promise<void> {
  const action = ACTIONS[command.do];
  if (action === undefined) {
    throw new Error(`unknown command: ${command.do}`);
  }
  const before = clock.now();
  try {
    const ok = await action(client, command);
    writeResponse(command, command.do === "state" ? before : clock.now(), { ok });
  } catch (error) {
    writeResponse(command, clock.now(), { error: errorFields(error) });
  } finally {
    pendingControllers.delete(command.id);
  }
}

function acquireOptions(command: Command): AcquireOptions {
  const controller = new AbortController();
  pendingControllers.set(command.id, controller);
  return {
    signal: controller.signal,
    ttlMs: command.ttl_ms ?? undefined,
    waitMs: command.wait_ms ?? undefined,
    maxHoldMs: command.max_hold_ms ?? undefined,
    lockDelayMs: command.lock_delay_ms ?? undefined,
    disconnectGraceMs: command.disconnect_grace_ms ?? undefined,
    atLeastMs: command.at_least_ms ?? undefined,
    reason: command.reason ?? undefined,
    under: typeof command.under === "string" ? leaseNamed(command.under).lease : undefined,
    onQueue: (queuePosition: QueuePosition) => {
      const at_ms = clock.now();
      const { position, queueLength: queue_length } = queuePosition;
      const holders = queuePosition.holders.map(holderFields);
      const closure = closureFields(queuePosition.closure);
      writeLine({ event: "queued", at_ms, call: command.id, position, queue_length, holders, closure });
    },
    onLost: (lease: Lease) => {
      writeLine({ event: "lost", at_ms: clock.now(), lease: command.as, reason: reasonOf(lease) });
    },
  };
}

function targetOf({ name, namespace, mode, permits, limit }: WireTarget): Target {
  const lock = { name, namespace: namespace ?? undefined };
  if (mode === "semaphore") {
    return { ...lock, permits, limit: limit ?? undefined };
  }
  return { ...lock, shared: mode === "shared" };
}

function storeLease(command: Command, lease: Lease): unknown {
  const namedLease = { lease, targets: command.targets.map(targetOf) };
  leases.set(command.as, namedLease);
  return leaseState(namedLease);
}

function leaseNamed(name: string): NamedLease {
  const namedLease = leases.get(name);
  if (namedLease === undefined) {
    throw new Error(`unknown lease: ${name}`);
  }
  return namedLease;
}

function leaseState({ lease, targets }: NamedLease): unknown {
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

function holderFields(holder: Holder): unknown {
  const { leaseId: lease_id, owner, reason, fencingToken: token, remainingMs: remaining_ms } = holder;
  return { lease_id, owner, reason, token, remaining_ms };
}

function closureFields(closure: Closure | undefined): unknown {
  if (closure === undefined) {
    return null;
  }
  const { cause, owner, reason, remainingMs: remaining_ms } = closure;
  return { cause: CLOSURE_CAUSES[cause], owner, reason, remaining_ms };
}

function permitUsageFields(permitUsage: PermitUsage | undefined): unknown {
  if (permitUsage === undefined) {
    return null;
  }
  const { limit, used, isLimitSet: is_limit_set } = permitUsage;
  return { limit, used, is_limit_set };
}

function errorFields(error: unknown): unknown {
  if (error instanceof LeaseholdError) {
    return {
      class: error.code,
      message: error.message,
      holders: error.holders.map(holderFields),
      retry_after_ms: error.retryAfterMs,
      reason: error instanceof LeaseLostError ? error.reason : undefined,
    };
  }
  if (error instanceof DOMException && error.name === "AbortError") {
    return { class: "Cancelled", message: error.message };
  }
  throw error;
}

function writeResponse(command: Command, at_ms: number, outcome: object): void {
  writeLine({ id: command.id, at_ms, ...outcome });
}

function writeLine(line: unknown): void {
  // Writes synchronously, independent of the event loop.
  writeSync(1, `${JSON.stringify(line)}\n`);
}

function packageVersion(): string {
  const text = readFileSync(new URL("../../package.json", import.meta.url), "utf8");
  return (JSON.parse(text) as { version: string }).version;
}

function readFileNamedBy(name: string): string | undefined {
  const path = process.env[name];
  return path === undefined ? undefined : readFileSync(path, "utf8");
}

/** Ends the process after an unexpected error, so that the suite does not take the error for a late response. */
function exitWithError(message: string): void {
  process.stderr.write(`${message}\n`);
  process.removeAllListeners("exit");
  process.exit(PROTOCOL_FAULT);
}

function configureLog(): void {
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
  configureLog();
  // The clock is precise within a step of the kernel's clock only after it has observed the start of one step.
  const startedAt = performance.now();
  while (performance.now() < startedAt + 20) {
    clock.now();
  }
  let client: Client;
  try {
    client = new Client(process.env["LEASEHOLD_ENDPOINTS"] ?? "", {
      owner: process.env["LEASEHOLD_OWNER"],
      bearerToken: process.env["LEASEHOLD_BEARER_TOKEN"],
      bearerTokenFile: process.env["LEASEHOLD_BEARER_TOKEN_FILE"],
      allowInsecureToken: process.env["LEASEHOLD_ALLOW_INSECURE_TOKEN"] !== undefined,
      tls: {
        ca: readFileNamedBy("LEASEHOLD_TLS_CA"),
        cert: readFileNamedBy("LEASEHOLD_TLS_CERT"),
        key: readFileNamedBy("LEASEHOLD_TLS_KEY"),
      },
      warn: (message) => {
        process.stderr.write(`${message}\n`);
        if (message.startsWith("internal error")) {
          exitWithError(message);
        }
      },
    });
    await client.connect();
  } catch (error) {
    if (error instanceof ConnectError) {
      writeLine({ event: "failed", at_ms: clock.now(), error: errorFields(error) });
      process.exitCode = 1;
      return;
    }
    throw error;
  }
  writeLine({ event: "ready", at_ms: clock.now() });
  // No shutdown at the end: the client's exit handler releases the held locks.
  createInterface({ input: process.stdin }).on("line", (line) => {
    void runCommand(client, JSON.parse(line) as Command);
  });
}

process.on("unhandledRejection", (error) => {
  exitWithError(error instanceof Error ? (error.stack ?? error.message) : String(error));
});
await main();
