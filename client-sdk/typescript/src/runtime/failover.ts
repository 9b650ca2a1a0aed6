// Failover to another broker: after the stream broke, on request of the broker, or without responses. A working stream
// is replaced only after another one was opened.

import { debuglog } from "node:util";

import { createFailure } from "./convert.js";
import { OPEN_TIMEOUT_MS } from "./endpoint.js";
import type { Session } from "./session.js";
import type { ConnectionListener } from "./stream-connection.js";
import { StreamConnection } from "./stream-connection.js";

const log = debuglog("leasehold");

/** Upper bound of a random delay, so that clients of a failed broker do not reconnect all at once. */
const JITTER_MS = 50;
/** Time after which a stream counts as successful and resets the number of failures. */
const STABLE_AFTER_MS = 1_000;
const BACKOFF_MIN_MS = 100;
const BACKOFF_MAX_MS = 1_000;

/**
 * Callback with the reason for which no stream could be opened, or null once a stream is open. `isUnauthenticated` is
 * true if the brokers rejected the credential.
 */
type ConnectCallback = (reason: string | null, isUnauthenticated: boolean) => void;

/** Returns a random time between half of `durationMs` and `durationMs`. */
export function withJitter(durationMs: number): number {
  return durationMs * (0.5 + Math.random() / 2);
}

/** State of a failover. */
export class Failover {
  /** Index of the endpoint of the current stream, or of the endpoint that was tried last. */
  private endpointIndex = -1;
  private nextAttemptAt: number | null = null;
  private newConnection: StreamConnection | null = null;
  /** Number of consecutive failures to open a stream or to keep it open. */
  private failures = 0;
  /** Number of consecutive endpoints that rejected the credential. */
  private credentialRejections = 0;
  private openedAt: number;
  private lastFailure = "not connected yet";
  /** Callbacks that wait for the first stream, each with the reasons of the failures since its registration. */
  private waitingCallers: { callback: ConnectCallback; reasons: string[] }[] = [];
  private isStopped = false;
  private readonly listener: ConnectionListener;

  constructor(private readonly session: Session) {
    this.openedAt = session.clock.now();
    const { wrapCallback } = session.runtime;
    this.listener = {
      onOpened: wrapCallback((connection: StreamConnection) => {
        this.onOpened(connection);
      }),
      onOpenFailed: wrapCallback((connection: StreamConnection, reason: string, isUnauthenticated: boolean) => {
        this.onOpenFailed(connection, reason, isUnauthenticated);
      }),
      onMessage: wrapCallback(session.onMessage.bind(session)),
      onDisconnect: wrapCallback(session.onDisconnect.bind(session)),
    };
  }

  /** True if no failover is planned. */
  get isIdle(): boolean {
    return this.nextAttemptAt === null;
  }

  /** Reason for which there is no stream. */
  get unavailableReason(): string {
    return `no broker can be reached: ${this.lastFailure}`;
  }

  /** Calls `callback` when a stream is open, or with the reasons once every endpoint has failed. */
  onceConnected(callback: ConnectCallback): void {
    if (this.session.connection !== null) {
      callback(null, false);
    } else {
      this.waitingCallers.push({ callback, reasons: [] });
    }
  }

  /** Moves to another broker after `delayMs`. */
  startFailover(delayMs: number): void {
    const now = this.session.clock.now();
    if (this.isIdle) {
      this.resetFailuresIfStable(now);
    }
    this.nextAttemptAt = Math.min(this.nextAttemptAt ?? Infinity, now + delayMs);
    this.pollConnect(now);
  }

  /** Handles the end of the stream. */
  onDisconnect(): void {
    this.lastFailure = "the lease stream ended";
    this.resetFailuresIfStable(this.session.clock.now());
    this.failures += 1;
    this.startFailover(Math.max(withJitter(JITTER_MS), this.backoffMs()));
  }

  /** Checks the time limit of an attempt to connect, and starts a due attempt. */
  onTick(now: number): void {
    const newConnection = this.newConnection;
    if (newConnection !== null && now >= newConnection.startedAt + OPEN_TIMEOUT_MS) {
      newConnection.abort();
      this.onOpenFailed(
        newConnection,
        `${newConnection.endpoint.name}: no answer within ${String(OPEN_TIMEOUT_MS / 1000)} s`,
        false,
      );
    }
    this.pollConnect(now);
  }

  /** Ends all attempts to connect, because the client is shut down. */
  stop(): void {
    this.isStopped = true;
    this.nextAttemptAt = null;
    this.newConnection?.abort();
    this.newConnection = null;
    this.notifyCallers("the client is shut down");
  }

  private resetFailuresIfStable(now: number): void {
    // A successful stream resets the failures before it.
    if (now > this.openedAt + STABLE_AFTER_MS) {
      this.failures = 0;
    }
  }

  private pollConnect(now: number): void {
    if (this.isStopped || this.newConnection !== null || this.nextAttemptAt === null || now < this.nextAttemptAt) {
      return;
    }
    this.endpointIndex += 1;
    try {
      this.newConnection = new StreamConnection(
        this.session.runtime.connectionSettings,
        this.endpointIndex,
        this.session.clock,
        this.listener,
      );
    } catch (error) {
      this.recordOpenFailure(error instanceof Error ? error.message : String(error), false);
    }
  }

  private onOpened(connection: StreamConnection): void {
    if (connection !== this.newConnection) {
      connection.abort();
      return;
    }
    this.newConnection = null;
    this.nextAttemptAt = null;
    this.credentialRejections = 0;
    this.openedAt = this.session.clock.now();
    this.session.switchConnection(connection);
    this.notifyCallers(null);
  }

  private onOpenFailed(connection: StreamConnection, reason: string, isUnauthenticated: boolean): void {
    if (connection === this.newConnection) {
      this.recordOpenFailure(reason, isUnauthenticated);
    }
  }

  private recordOpenFailure(reason: string, isUnauthenticated: boolean): void {
    this.newConnection = null;
    log(isUnauthenticated ? "a broker rejected the credential: %s" : "connecting to a broker failed: %s", reason);
    this.credentialRejections = isUnauthenticated ? this.credentialRejections + 1 : 0;
    this.failures += 1;
    this.lastFailure = reason;
    const endpointCount = this.session.runtime.connectionSettings.endpoints.length;
    if (this.credentialRejections >= endpointCount && this.session.connection === null) {
      // Pending calls fail instead of being repeated.
      this.session.pendingAcquires.failAll(createFailure("Unauthenticated", this.unavailableReason));
    }
    this.nextAttemptAt = this.session.clock.now() + this.backoffMs();
    const waitingCallers = this.waitingCallers;
    this.waitingCallers = [];
    for (const caller of waitingCallers) {
      caller.reasons.push(reason);
      if (caller.reasons.length >= endpointCount) {
        caller.callback(caller.reasons.join("; "), this.credentialRejections >= endpointCount);
      } else {
        this.waitingCallers.push(caller);
      }
    }
  }

  private notifyCallers(reason: string | null): void {
    const waitingCallers = this.waitingCallers;
    this.waitingCallers = [];
    for (const { callback } of waitingCallers) {
      callback(reason, false);
    }
  }

  private backoffMs(): number {
    // In the first round each endpoint is tried at once, in later rounds with an exponential backoff.
    const rounds = Math.floor(this.failures / this.session.runtime.connectionSettings.endpoints.length);
    return rounds === 0 ? 0 : withJitter(Math.min(BACKOFF_MIN_MS * 2 ** Math.min(rounds - 1, 16), BACKOFF_MAX_MS));
  }
}
