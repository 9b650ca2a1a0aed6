// Runtime of the worker thread: the sessions of a client, and their shutdown.

import type { ServiceError } from "@grpc/grpc-js";
import { status as Code } from "@grpc/grpc-js";

import type { Clock } from "../clock.js";
import type { GetLockResponse } from "../gen/leasehold/v1/inspection_service.js";
import type { SetLockLimitResponse } from "../gen/leasehold/v1/lock_service.js";
import type { AcquireCommand, AcquireScope, CommandResponse, ConnectionSettings, WorkerMessage } from "../messages.js";
import type { LockName } from "../target.js";
import {
  convertClosure,
  convertHolder,
  convertPermitUsage,
  createFailure,
  failureFromStatus,
  leaseLostFailure,
} from "./convert.js";
import { Session } from "./session.js";
import type { StreamConnection } from "./stream-connection.js";

/** Maximum number of leases and pending acquires on one stream, as the broker allows. */
const STREAM_LEASES_MAX = 1_000;
/** Interval of the deadline checks. Timers do not run during a suspend, so deadlines are polled. */
const TICK_MS = 50;

/** Sends the response to a command. */
export type Reply = (response: CommandResponse) => void;

/** The runtime of the worker thread, which executes the commands of the program. */
export class ClientRuntime {
  private readonly sessions: Session[] = [];
  private tickTimer: NodeJS.Timeout | null = null;
  private isClosed = false;
  /** Number of sessions that are still closing. */
  private closingCount = 0;
  private closeCallbacks: (() => void)[] = [];

  constructor(
    readonly connectionSettings: ConnectionSettings,
    readonly clock: Clock,
    readonly notify: (message: WorkerMessage) => void,
  ) {}

  /**
   * Wraps a callback so that an exception in it is reported and does not end the leases of other calls. Afterwards
   * starts or stops the timer of the deadline checks.
   */
  readonly wrapCallback =
    <T extends unknown[]>(callback: (...args: T) => void): ((...args: T) => void) =>
    (...args) => {
      try {
        callback(...args);
      } catch (error) {
        const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
        this.notify({ kind: "error", text });
      }
      this.updateTickTimer();
    };

  /** Replies when a stream is open, or with the reason for which no stream could be opened. */
  connect(reply: Reply): void {
    if (this.isClosed) {
      reply(failedResponse("Closed", ""));
      return;
    }
    this.sessionWithCapacity(0).failover.onceConnected((reason, isUnauthenticated) => {
      if (reason === null) {
        reply({ kind: "done" });
      } else if (isUnauthenticated) {
        reply(failedResponse("CredentialRefused", `the credential is missing or not accepted: ${reason}`));
      } else {
        reply(failedResponse("Unreachable", `no broker answers: ${reason}`));
      }
    });
  }

  /** Acquires locks and renews their lease. */
  acquire(command: AcquireCommand, id: number): void {
    const reply = (response: CommandResponse) => {
      this.notify({ kind: "response", id, response });
    };
    if (this.isClosed) {
      reply(failedResponse("Closed", ""));
      return;
    }
    const { under } = command;
    const session = under === undefined ? this.sessionWithCapacity(1) : this.sessionOfLease(under);
    if (session === undefined) {
      reply({ kind: "failed", failure: leaseLostFailure({ reason: "Released", message: "" }) });
    } else {
      session.pendingAcquires.add(command, id);
    }
  }

  /** Cancels an acquire. Granted locks are released. */
  cancel(requestId: string): void {
    for (const session of this.sessions) {
      session.pendingAcquires.cancel(requestId);
    }
  }

  /** Releases the locks of one acquire. */
  release(leaseId: string, scope: AcquireScope, reply: Reply): void {
    const session = this.sessions.find(({ leases }) => leases.all.has(leaseId) || leases.lost.has(leaseId));
    if (session === undefined) {
      // The lease was lost before; the program's thread has the reason.
      reply({ kind: "failed", failure: leaseLostFailure({ reason: "Closed", message: "" }) });
      return;
    }
    session.pendingReleases.release(leaseId, scope, (releaseFailure) => {
      reply(releaseFailure === null ? { kind: "done" } : { kind: "failed", failure: releaseFailure });
    });
  }

  /** Returns the state of a lock. */
  getLockState(lock: LockName, reply: Reply): void {
    this.onceConnected(reply, (connection) => {
      connection.getLock(lock, (error, response) => {
        reply(lockStateResponse(error, response));
      });
    });
  }

  /** Sets the limit of a semaphore, or removes it if `limit` is null. */
  setLimit(lock: LockName, limit: number | null, reply: Reply): void {
    this.onceConnected(reply, (connection) => {
      connection.setLockLimit({ lock, limit: limit ?? 0 }, (error, response) => {
        reply(previousLimitResponse(error, response));
      });
    });
  }

  /** Cancels every wait, releases every lease, and closes all streams. */
  close(timeoutMs: number, onClosed: () => void): void {
    this.closeCallbacks.push(onClosed);
    if (!this.isClosed) {
      // A later call must not create another session, which would never be closed.
      this.isClosed = true;
      this.closingCount = this.sessions.length;
      for (const session of this.sessions) {
        session.close(this.clock.now() + timeoutMs, () => {
          this.closingCount -= 1;
          this.notifyIfClosed();
        });
      }
    }
    this.notifyIfClosed();
  }

  /** Calls `call` when a stream is open, or replies with the reason for which no stream could be opened. */
  private onceConnected(reply: Reply, call: (connection: StreamConnection) => void): void {
    if (this.isClosed) {
      reply(failedResponse("Closed", ""));
      return;
    }
    const session = this.sessionWithCapacity(0);
    session.failover.onceConnected(() => {
      if (session.connection !== null) {
        call(session.connection);
      } else if (this.isClosed) {
        reply(failedResponse("Closed", ""));
      } else {
        reply(failedResponse("Unavailable", session.failover.unavailableReason));
      }
    });
  }

  private notifyIfClosed(): void {
    if (this.closingCount === 0) {
      const { closeCallbacks } = this;
      this.closeCallbacks = [];
      for (const onClosed of closeCallbacks) {
        onClosed();
      }
    }
  }

  /** Returns a session with capacity for `additional` leases or pending acquires. */
  private sessionWithCapacity(additional: number): Session {
    const existing = this.sessions.find((session) => session.load + additional <= STREAM_LEASES_MAX);
    if (existing !== undefined) {
      return existing;
    }
    const session = new Session(this);
    this.sessions.push(session);
    return session;
  }

  private sessionOfLease(leaseId: string): Session | undefined {
    return this.sessions.find((session) => session.leases.all.has(leaseId));
  }

  private updateTickTimer(): void {
    const isIdle = this.sessions.every((session) => session.isIdle);
    if (isIdle && this.tickTimer !== null) {
      clearInterval(this.tickTimer);
      this.tickTimer = null;
    } else if (!isIdle) {
      this.tickTimer ??= setInterval(this.wrapCallback(this.onTick.bind(this)), TICK_MS);
    }
  }

  private onTick(): void {
    const now = this.clock.now();
    for (const session of this.sessions) {
      session.onTick(now);
    }
  }
}

function lockStateResponse(error: ServiceError | null, response: GetLockResponse | undefined): CommandResponse {
  if (error?.code === Code.NOT_FOUND) {
    return { kind: "lockState", state: null };
  }
  if (error !== null) {
    return { kind: "failed", failure: failureFromStatus(error) };
  }
  const lock = response?.lock;
  const holders = lock?.holders.map(convertHolder) ?? [];
  const { queueLength = 0, lastFencingToken = 0 } = lock ?? {};
  const closure = lock?.closure && convertClosure(lock.closure);
  const permitUsage = lock?.permitUsage && convertPermitUsage(lock.permitUsage);
  return { kind: "lockState", state: { holders, queueLength, lastFencingToken, closure, permitUsage } };
}

function previousLimitResponse(
  error: ServiceError | null,
  response: SetLockLimitResponse | undefined,
): CommandResponse {
  if (error !== null) {
    return { kind: "failed", failure: failureFromStatus(error) };
  }
  const { previousLimit = 0 } = response ?? {};
  return { kind: "previousLimit", limit: previousLimit === 0 ? null : previousLimit };
}

function failedResponse(code: string, message: string): CommandResponse {
  return { kind: "failed", failure: createFailure(code, message) };
}
