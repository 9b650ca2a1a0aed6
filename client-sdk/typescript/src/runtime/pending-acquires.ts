// Pending acquires: sent again on every new stream until they have a response.

import type { Granted as WireGranted, Queued, Refused } from "../gen/leasehold/v1/lock_service.js";
import type { Lease as WireLease } from "../gen/leasehold/v1/types.js";
import { ErrorReason } from "../gen/leasehold/v1/types.js";
import type { AcquireCommand, CommandResponse, Failure, QueuePosition, StoreRecovery } from "../messages.js";
import {
  convertClosure,
  convertHolder,
  convertRecovery,
  createFailure,
  failureFromRefused,
  isRetryable,
  leaseLostFailure,
  recoveryFromRefused,
} from "./convert.js";
import { withJitter } from "./failover.js";
import { acquireAllRequest, acquireRequest } from "./requests.js";
import type { Session } from "./session.js";
import type { ClientMessage } from "./stream-connection.js";

/** Time after the end of its wait for which an acquire of unknown outcome is repeated. */
const RETRY_LIMIT_MS = 5_000;
/** Pause before an acquire is repeated after a retryable rejection. */
const RETRY_DELAY_MS = 200;
/** Pause before a failover from a broker that cannot reach its store. */
const STORE_FAILOVER_DELAY_MS = 2_000;
/** Longest interval between heartbeats while an acquire is pending. */
const HEARTBEAT_INTERVAL_MAX_MS = 2_000;
/** Shortest TTL that a broker grants by default. */
const TTL_MIN_MS = 1_000;

/** A pending acquire. */
export class PendingAcquire {
  /** End of the wait in the queue. */
  readonly waitDeadline: number;
  attachNumber = 0;
  /** Call id of the latest attempt; 0: not sent on this stream. */
  callId = 0;
  /** Latest rejection that allows a repetition. */
  lastRejection: Failure | null = null;
  /** Recovery that was reported last, for a call that is not in the queue. */
  private reportedRecovery: StoreRecovery | undefined;
  /** True if the acquire was answered or cancelled. */
  isCompleted = false;
  /** Interval between heartbeats while the acquire is pending. */
  readonly intervalMs: number;

  constructor(
    private readonly session: Session,
    readonly command: AcquireCommand,
    private readonly commandId: number,
  ) {
    this.waitDeadline = session.clock.now() + command.waitMs;
    const ttlMs =
      command.params.ttlMs === undefined ? 3 * HEARTBEAT_INTERVAL_MAX_MS : Math.max(command.params.ttlMs, TTL_MIN_MS);
    this.intervalMs = Math.min(ttlMs / 3, HEARTBEAT_INTERVAL_MAX_MS);
  }

  get requestId(): string {
    return this.command.params.requestId;
  }

  /** Sends the response, once. A later grant is released. */
  respond(response: CommandResponse): void {
    if (!this.isCompleted) {
      this.isCompleted = true;
      this.session.runtime.notify({ kind: "response", id: this.commandId, response });
    } else if (response.kind === "granted") {
      const locks = response.lease.grants.map((grant) => grant.lock);
      this.session.pendingReleases.release(response.lease.leaseId, { requestId: this.requestId, locks }, null);
    }
  }

  /** Completes the acquire with a failure. */
  fail(failure: Failure): void {
    this.respond({ kind: "failed", failure });
  }

  /** Sends the queue position to the caller. */
  reportQueued(queued: Queued): void {
    const { position, queueLength } = queued;
    const holders = queued.holders.map(convertHolder);
    const closure = queued.closure && convertClosure(queued.closure);
    const recovery = queued.recovery && convertRecovery(queued.recovery);
    this.reportedRecovery = undefined;
    this.notifyPosition({ position, queueLength, holders, closure, recovery });
  }

  /** Reports that the call is not in the queue because the store recovers, once for each recovery. */
  reportRecovery(refused: Refused): void {
    const recovery = recoveryFromRefused(refused);
    const last = this.reportedRecovery;
    const isKnown = recovery?.cause === last?.cause && recovery?.since?.getTime() === last?.since?.getTime();
    if (recovery !== undefined && !isKnown) {
      this.reportedRecovery = recovery;
      this.notifyPosition({ position: 0, queueLength: 0, holders: [], closure: undefined, recovery });
    }
  }

  private notifyPosition(position: QueuePosition): void {
    if (!this.isCompleted) {
      this.session.runtime.notify({ kind: "position", id: this.commandId, position });
    }
  }

  /** Returns the failure for a rejection. */
  toFailure(refused: Refused): Failure {
    const failure = failureFromRefused(refused);
    // An attempt after the end of the wait is sent without waiting and rejected as held. Its caller has waited, so the
    // result is a wait timeout.
    return failure.code === "Held" && this.command.waitMs > 0 ? { ...failure, code: "WaitTimeout" } : failure;
  }
}

/** The pending acquires of one session, by request id. */
export class PendingAcquires {
  all = new Map<string, PendingAcquire>();

  constructor(private readonly session: Session) {}

  /** Adds and sends an acquire. `commandId` is the id of its response. */
  add(command: AcquireCommand, commandId: number): void {
    const pendingAcquire = new PendingAcquire(this.session, command, commandId);
    this.all.set(pendingAcquire.requestId, pendingAcquire);
    this.send(pendingAcquire.requestId);
  }

  /**
   * Sends an acquire if it can be sent now. An acquire under a lease is sent only while that lease is attached to this
   * stream.
   */
  send(requestId: string): void {
    const { connection } = this.session;
    const pendingAcquire = this.all.get(requestId);
    if (connection === null || pendingAcquire === undefined) {
      return;
    }
    let under: WireLease | undefined;
    if (pendingAcquire.command.under !== undefined) {
      const heldLease = this.session.leases.all.get(pendingAcquire.command.under);
      if (heldLease?.pendingRelease !== null) {
        this.all.delete(requestId);
        pendingAcquire.fail(leaseLostFailure({ reason: "Released", message: "" }));
        return;
      }
      if (!heldLease.isAttached) {
        return;
      }
      under = heldLease.lease;
      pendingAcquire.attachNumber = heldLease.attachNumber;
    } else {
      pendingAcquire.attachNumber += 1;
    }
    pendingAcquire.callId = connection.call({ kind: "acquire", key: requestId }, (callId) =>
      this.acquireMessage(pendingAcquire, callId, under),
    );
  }

  private acquireMessage(pendingAcquire: PendingAcquire, callId: number, under: WireLease | undefined): ClientMessage {
    const { params } = pendingAcquire.command;
    // An acquire whose wait has ended is still sent once, without waiting.
    const remainingMs = Math.max(
      0,
      Math.min(pendingAcquire.waitDeadline - this.session.clock.now(), pendingAcquire.command.waitMs),
    );
    const { attachNumber } = pendingAcquire;
    const { traceparent } = params;
    if (params.targets.length === 1) {
      const request = acquireRequest(params, remainingMs, under);
      return { $case: "acquire", value: { callId, attachNumber, traceparent, request } };
    }
    const request = acquireAllRequest(params, remainingMs);
    return { $case: "acquireAll", value: { callId, attachNumber, traceparent, request } };
  }

  /** Sends the acquires that waited for the attachment of their lease. If the lease has ended, they fail. */
  sendForLease(leaseId: string): void {
    for (const pendingAcquire of [...this.all.values()]) {
      if (pendingAcquire.command.under === leaseId && pendingAcquire.callId === 0) {
        this.send(pendingAcquire.requestId);
      }
    }
  }

  /** Cancels an acquire. The broker sends a rejection, or a grant that is then released. */
  cancel(requestId: string): void {
    const pendingAcquire = this.all.get(requestId);
    if (pendingAcquire === undefined) {
      this.session.leases.cancelUndelivered(requestId);
      return;
    }
    pendingAcquire.fail(createFailure("Cancelled", ""));
    if (this.session.connection !== null && pendingAcquire.callId !== 0) {
      this.session.connection.send({ $case: "cancel", value: { callId: pendingAcquire.callId } });
    } else {
      this.all.delete(requestId);
    }
  }

  /** Handles a queue position. */
  onQueued(queued: Queued): void {
    const subject = this.session.connection?.pending(queued.callId);
    if (subject?.kind === "acquire") {
      this.all.get(subject.key)?.reportQueued(queued);
    }
  }

  /** Handles the grant of an acquire. */
  onGranted(granted: WireGranted): void {
    const { connection } = this.session;
    const pendingCall = connection?.complete(granted.callId);
    if (connection === null || pendingCall?.subject.kind !== "acquire" || granted.lease === undefined) {
      return;
    }
    const pendingAcquire = this.all.get(pendingCall.subject.key);
    if (pendingAcquire === undefined) {
      // An earlier attempt was answered as well; the lease belongs to the caller of that attempt.
      return;
    }
    this.all.delete(pendingCall.subject.key);
    // The broker sent the acquire to its store after it had received both messages, so the later one counts. After an
    // idle period the heartbeat is the earlier one.
    const sentAt = Math.max(connection.heartbeatSentAt(granted.asOfSequence) ?? pendingCall.sentAt, pendingCall.sentAt);
    if (pendingAcquire.command.under === undefined) {
      this.session.leases.adopt(granted.lease, pendingAcquire, sentAt);
    } else {
      this.session.leases.addLocks(granted.lease, pendingAcquire);
    }
  }

  /** Handles the rejection of an acquire, which is final or retryable. */
  onRefused(requestId: string, refused: Refused): void {
    const pendingAcquire = this.all.get(requestId);
    if (pendingAcquire?.callId !== refused.callId) {
      return;
    }
    pendingAcquire.callId = 0;
    if (pendingAcquire.isCompleted || !isRetryable(refused)) {
      this.all.delete(requestId);
      pendingAcquire.fail(pendingAcquire.toFailure(refused));
      return;
    }
    pendingAcquire.lastRejection = failureFromRefused(refused);
    pendingAcquire.reportRecovery(refused);
    this.session.scheduleRetry(withJitter(RETRY_DELAY_MS), { kind: "acquire", key: requestId });
    // Starts a failover if the broker is draining or cannot reach its store.
    if (refused.reason === ErrorReason.DRAINING) {
      this.session.failover.startFailover(0);
    } else if (
      refused.reason === ErrorReason.STORE_UNAVAILABLE &&
      this.session.runtime.connectionSettings.endpoints.length > 1
    ) {
      this.session.failover.startFailover(withJitter(STORE_FAILOVER_DELAY_MS));
    }
  }

  /** Fails acquires that have no response `RETRY_LIMIT_MS` after the end of their wait. */
  expirePending(now: number): void {
    for (const pendingAcquire of [...this.all.values()]) {
      if (!pendingAcquire.isCompleted && now >= pendingAcquire.waitDeadline + RETRY_LIMIT_MS) {
        const reason =
          this.session.connection === null ? this.session.failover.unavailableReason : "the broker does not answer";
        pendingAcquire.fail(pendingAcquire.lastRejection ?? createFailure("Unavailable", reason));
        this.cancel(pendingAcquire.requestId);
      }
    }
  }

  /**
   * Marks all pending acquires as not sent, because their stream has ended. Cancelled acquires are removed: the broker
   * cancels attempts that are not repeated.
   */
  onStreamLost(): void {
    for (const pendingAcquire of [...this.all.values()]) {
      pendingAcquire.callId = 0;
      if (pendingAcquire.isCompleted) {
        this.all.delete(pendingAcquire.requestId);
      }
    }
  }

  /** Sends all pending acquires on a new stream. */
  resumeAll(): void {
    for (const requestId of [...this.all.keys()]) {
      this.send(requestId);
    }
  }

  /** Fails all pending acquires. */
  failAll(failure: Failure): void {
    for (const pendingAcquire of this.all.values()) {
      pendingAcquire.fail(failure);
    }
    this.all.clear();
  }
}
