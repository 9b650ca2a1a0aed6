// Session: the leases and pending acquires of one stream, which survive a failover to another broker.

import { debuglog } from "node:util";

import type { Clock } from "../clock.js";
import type { HoldResponse, Refused, Released } from "../gen/leasehold/v1/lock_service.js";
import type { ClientRuntime } from "./client-runtime.js";
import { createFailure, durationToMs, lossFromEnded } from "./convert.js";
import { Failover } from "./failover.js";
import { checkSilence, heartbeatIfDue } from "./heartbeats.js";
import { Leases } from "./leases.js";
import { PendingAcquires } from "./pending-acquires.js";
import { PendingReleases } from "./pending-releases.js";
import type { CallSubject, StreamConnection } from "./stream-connection.js";

const log = debuglog("leasehold");

/** A session: one stream, with the leases and calls on it or waiting for the next stream. */
export class Session {
  connection: StreamConnection | null = null;
  readonly clock: Clock;
  readonly failover: Failover;
  readonly pendingAcquires: PendingAcquires;
  readonly leases: Leases;
  readonly pendingReleases: PendingReleases;
  /** Calls that were rejected as retryable, and the time of their next attempt. */
  private retries: { retryAt: number; subject: CallSubject }[] = [];
  /** Callback for the end of the shutdown; null while the session is not closing. */
  private onClosed: (() => void) | null = null;
  private closeDeadline = 0;
  private closeConnectionDeadline = 0;
  private isConnectionClosed = false;

  constructor(readonly runtime: ClientRuntime) {
    this.clock = runtime.clock;
    this.failover = new Failover(this);
    this.pendingAcquires = new PendingAcquires(this);
    this.leases = new Leases(this);
    this.pendingReleases = new PendingReleases(this);
    this.failover.startFailover(0);
  }

  /** Number of leases and pending acquires. */
  get load(): number {
    return this.pendingAcquires.all.size + this.leases.all.size;
  }

  /** True if the session has no deadlines to check. */
  get isIdle(): boolean {
    return this.load === 0 && this.failover.isIdle && this.onClosed === null;
  }

  /** Schedules another attempt of a call. */
  scheduleRetry(delayMs: number, subject: CallSubject): void {
    this.retries.push({ retryAt: this.clock.now() + delayMs, subject });
  }

  /** Handles a message of the broker. */
  onMessage(connection: StreamConnection, response: HoldResponse): void {
    const { message } = response;
    if (connection !== this.connection) {
      return;
    }
    connection.recordMessage();
    switch (message?.$case) {
      case "ack":
        this.leases.onHeartbeatAck(message.value);
        break;
      case "granted":
        this.pendingAcquires.onGranted(message.value);
        break;
      case "released":
        this.onReleased(connection, message.value);
        break;
      case "queued":
        this.pendingAcquires.onQueued(message.value);
        break;
      case "refused":
        this.onRefused(connection, message.value);
        break;
      case "attached":
        this.leases.onAttached(message.value);
        break;
      case "ended":
        this.leases.onEnded(message.value.leaseId, lossFromEnded(message.value));
        break;
      case "reconnect":
        this.failover.startFailover(durationToMs(message.value.delay));
        break;
      case "done":
        if (connection.complete(message.value.callId)?.subject.kind === "credential") {
          connection.onCredentialResponse(true);
        }
        break;
      case "releaseRequested":
        log("the broker requests the release of lease %s: %s", message.value.leaseId, message.value.message);
        break;
      case undefined:
      // An unknown message comes from a newer broker.
    }
  }

  private onReleased(connection: StreamConnection, released: Released): void {
    const subject = connection.complete(released.callId)?.subject;
    if (subject?.kind !== "release") {
      return;
    }
    if (subject.partialId === undefined) {
      this.pendingReleases.onReleased(subject.key);
    } else {
      this.pendingReleases.onPartialRelease(subject.key, subject.partialId, released.holdCount);
    }
  }

  private onRefused(connection: StreamConnection, refused: Refused): void {
    const subject = connection.complete(refused.callId)?.subject;
    if (subject?.kind === "acquire") {
      this.pendingAcquires.onRefused(subject.key, refused);
    } else if (subject?.kind === "attach") {
      this.leases.onAttachRefused(subject.key, refused);
    } else if (subject?.kind === "release" && subject.partialId === undefined) {
      this.pendingReleases.onRefused(subject.key, refused);
    } else if (subject?.kind === "release" && subject.partialId !== undefined) {
      this.pendingReleases.onPartialReleaseRefused(subject.key, subject.partialId, refused);
    } else if (subject?.kind === "credential") {
      // The broker may load the key of the token, or the token itself, within a short time.
      log("a broker rejected the new credential: %s", refused.message);
      connection.onCredentialResponse(false);
    }
  }

  /** Handles all deadlines that have passed. */
  onTick(now: number): void {
    if (this.onClosed !== null) {
      this.closeConnection();
      if (now >= this.closeDeadline) {
        this.finishClose(false);
      }
      return;
    }
    this.leases.checkDeadlines();
    this.pendingAcquires.expirePending(now);
    checkSilence(this, now);
    heartbeatIfDue(this, now);
    this.connection?.refreshCredential(now);
    this.sendRetries(now);
    this.failover.onTick(now);
  }

  private sendRetries(now: number): void {
    if (this.connection === null || this.retries.length === 0) {
      return;
    }
    const dueRetries = this.retries.filter(({ retryAt }) => retryAt <= now);
    this.retries = this.retries.filter(({ retryAt }) => retryAt > now);
    for (const { subject } of dueRetries) {
      if (subject.kind === "acquire") {
        this.pendingAcquires.send(subject.key);
      } else if (subject.kind === "attach") {
        this.leases.attach(subject.key);
      } else if (subject.kind === "release" && subject.partialId === undefined) {
        this.pendingReleases.send(subject.key);
      } else if (subject.kind === "release" && subject.partialId !== undefined) {
        this.pendingReleases.sendPartial(subject.key, subject.partialId);
      }
    }
  }

  /** Releases all leases and closes the stream, at the latest at `deadline`. */
  close(deadline: number, onClosed: () => void): void {
    this.pendingAcquires.failAll(createFailure("Closed", ""));
    this.pendingReleases.releaseAllLost();
    for (const [leaseId, heldLease] of [...this.leases.all]) {
      this.leases.close(leaseId, heldLease);
    }
    this.leases.all.clear();
    this.failover.stop();
    this.onClosed = onClosed;
    this.closeDeadline = deadline;
    this.closeConnectionDeadline = (this.clock.now() + deadline) / 2;
    if (this.connection === null) {
      this.finishClose(false);
    } else {
      this.closeConnection();
    }
  }

  /**
   * Closes the stream once the session is closing and no unary release is pending, or after half of the shutdown time.
   */
  closeConnection(): void {
    const isDue = this.pendingReleases.unaryCount === 0 || this.clock.now() >= this.closeConnectionDeadline;
    if (this.onClosed !== null && this.connection !== null && !this.isConnectionClosed && isDue) {
      this.isConnectionClosed = true;
      this.connection.close();
    }
  }

  /** Handles the end of a stream. */
  onDisconnect(connection: StreamConnection): void {
    if (connection !== this.connection) {
      return;
    }
    this.connection = null;
    if (this.onClosed !== null) {
      this.finishClose(true);
      return;
    }
    log("the lease stream ended");
    this.onStreamLost();
    this.failover.onDisconnect();
  }

  /** Moves all leases and calls to a new stream. It repeats what the old stream would still report. */
  switchConnection(connection: StreamConnection): void {
    const previous = this.connection;
    this.connection = connection;
    previous?.abort();
    this.onStreamLost();
    this.leases.resumeAll();
    this.pendingAcquires.resumeAll();
  }

  private onStreamLost(): void {
    this.retries = [];
    this.pendingAcquires.onStreamLost();
    this.leases.onStreamLost();
  }

  private finishClose(isStreamClosed: boolean): void {
    const onClosed = this.onClosed;
    this.onClosed = null;
    this.connection?.abort();
    this.connection = null;
    this.pendingReleases.onSessionClosed(isStreamClosed);
    onClosed?.();
  }
}
