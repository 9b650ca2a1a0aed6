// Leases of a session: adoption, renewal, attachment and loss.

import { debuglog } from "node:util";

import type { Loss } from "../errors.js";
import { formatLoss } from "../errors.js";
import type { HeartbeatAck, LeaseAttached, LeaseExtended, Refused } from "../gen/leasehold/v1/lock_service.js";
import type { Lease as WireLease } from "../gen/leasehold/v1/types.js";
import type { AcquireParams, CommandResponse } from "../messages.js";
import type { LockName } from "../target.js";
import { isSameLock, lockOf } from "../target.js";
import { LeaseValidity } from "../validity.js";
import {
  createFailure,
  durationToMs,
  isRetryable,
  leaseLostFailure,
  lockNameFromTarget,
  lossFromRefused,
} from "./convert.js";
import { withJitter } from "./failover.js";
import type { PendingAcquire } from "./pending-acquires.js";
import type { PartialRelease, PendingRelease } from "./pending-releases.js";
import type { Session } from "./session.js";

const log = debuglog("leasehold");

const RETRY_DELAY_MS = 100;
const EXPIRED_LOSS: Loss = { reason: "Expired", message: "" };

/** A lease that is attached to the stream, or waits to be attached to the next one. */
export class HeldLease {
  ttlMs: number;
  validUntil: number;
  attachNumber: number;
  isAttached = true;
  /** Time at which the lease was attached to this stream, if it was granted on another one. */
  attachedAt: number | null = null;
  /** Validity that the lease's holders check; null until the lease is delivered. */
  validity: LeaseValidity | null = null;
  /** Acquire that the lease was granted to, until enough validity is confirmed to deliver the lease. */
  undeliveredAcquire: PendingAcquire | null;
  /** Number of acquires whose locks have not been released. */
  acquireCount = 1;
  pendingRelease: PendingRelease | null = null;
  readonly partialReleases = new Map<number, PartialRelease>();
  private readonly requestedIntervalMs: number;

  constructor(
    public lease: WireLease,
    pendingAcquire: PendingAcquire,
    sentAt: number,
    readonly grantedAt: number,
  ) {
    this.ttlMs = durationToMs(lease.ttl);
    this.validUntil = sentAt + this.ttlMs;
    this.attachNumber = pendingAcquire.attachNumber;
    this.undeliveredAcquire = pendingAcquire;
    this.requestedIntervalMs = durationToMs(lease.heartbeatInterval);
  }

  /** Interval at which the lease needs heartbeats. */
  get intervalMs(): number {
    const third = this.ttlMs / 3;
    return this.requestedIntervalMs === 0 ? third : Math.min(this.requestedIntervalMs, third);
  }

  /** Returns true if a heartbeat is due, counted from the start of the confirmed validity. */
  isHeartbeatDue(now: number): boolean {
    return now >= this.validUntil - this.ttlMs + this.intervalMs;
  }

  /** Returns true if the deadline of the lease has passed: of its release, of its delivery, or of its validity. */
  isDeadlinePassed(latest: number): boolean {
    if (this.pendingRelease !== null) {
      return latest >= this.pendingRelease.endedAt;
    }
    return this.validity === null ? latest > this.grantedAt + this.ttlMs : !this.validity.isValid(latest);
  }

  /** Merges the grants of the call's own locks; the answer may omit grants added by other calls. */
  merge(granted: WireLease, params: AcquireParams): void {
    const others = this.lease.grants.filter((grant) => !isRequested(params, lockNameFromTarget(grant.target)));
    const requested = granted.grants.filter((grant) => isRequested(params, lockNameFromTarget(grant.target)));
    this.lease = { ...granted, grants: [...others, ...requested] };
  }

  /** Removes the grant of a released lock. */
  removeGrant(releasedLock: LockName): void {
    const grants = this.lease.grants.filter((grant) => !isSameLock(lockNameFromTarget(grant.target), releasedLock));
    this.lease = { ...this.lease, grants };
  }
}

/** The leases of one stream, by their ids. */
export class Leases {
  readonly all = new Map<string, HeldLease>();
  /** Lost leases whose work has not stopped yet. */
  readonly lost = new Map<string, HeldLease>();

  constructor(private readonly session: Session) {}

  /** Adds the lease that was granted to a call, with its validity counted from `sentAt`. */
  adopt(lease: WireLease, pendingAcquire: PendingAcquire, sentAt: number): void {
    const heldLease = new HeldLease(lease, pendingAcquire, sentAt, this.session.clock.now());
    this.all.set(lease.leaseId, heldLease);
    this.deliver(heldLease);
  }

  /** Completes a call under a lease with the locks that the call added to the lease. */
  addLocks(lease: WireLease, pendingAcquire: PendingAcquire): void {
    const heldLease = this.all.get(lease.leaseId);
    if (heldLease === undefined || heldLease.validity === null) {
      // The call has attached the lease to this stream, where it must not be renewed.
      this.detach(lease.leaseId);
      pendingAcquire.fail(leaseLostFailure(EXPIRED_LOSS));
      return;
    }
    heldLease.acquireCount += 1;
    heldLease.merge(lease, pendingAcquire.command.params);
    pendingAcquire.respond(grantedResponse(heldLease, heldLease.validity, pendingAcquire.command.params));
  }

  /** Releases an undelivered lease whose caller has cancelled. */
  cancelUndelivered(requestId: string): void {
    for (const [leaseId, heldLease] of this.all) {
      if (heldLease.undeliveredAcquire?.requestId === requestId) {
        heldLease.undeliveredAcquire = null;
        this.session.pendingReleases.release(leaseId, { requestId, locks: [] }, null);
      }
    }
  }

  /**
   * Delivers a new lease to its caller if half of its validity is left. Otherwise the confirmation of the next
   * heartbeat delivers it, which is due soon.
   */
  private deliver(heldLease: HeldLease): void {
    const { clock } = this.session;
    if (heldLease.undeliveredAcquire === null || clock.latest() + heldLease.ttlMs / 2 > heldLease.validUntil) {
      return;
    }
    const pendingAcquire = heldLease.undeliveredAcquire;
    heldLease.undeliveredAcquire = null;
    heldLease.validity = LeaseValidity.start(heldLease.validUntil, heldLease.ttlMs, clock);
    pendingAcquire.respond(grantedResponse(heldLease, heldLease.validity, pendingAcquire.command.params));
  }

  /** Handles the confirmation of a heartbeat. */
  onHeartbeatAck(ack: HeartbeatAck): void {
    const sentAt = this.session.connection?.heartbeatSentAt(ack.sequence);
    if (sentAt !== undefined) {
      for (const extended of ack.leases) {
        this.onExtended(sentAt, extended);
      }
    }
  }

  private onExtended(sentAt: number, extended: LeaseExtended): void {
    const heldLease = this.all.get(extended.leaseId);
    if (heldLease?.lease.grants.length !== extended.grantCount) {
      return;
    }
    heldLease.ttlMs = durationToMs(extended.ttl);
    const validUntil = sentAt + heldLease.ttlMs;
    heldLease.validUntil = Math.max(heldLease.validUntil, validUntil);
    if (heldLease.undeliveredAcquire !== null) {
      this.deliver(heldLease);
    } else if (heldLease.pendingRelease === null && heldLease.validity?.extend(validUntil, heldLease.ttlMs) === false) {
      this.expire(extended.leaseId);
    }
  }

  /**
   * Stops renewing a lease whose validity has passed. The lock is released only after the guarded work has stopped; see
   * `retainLost`.
   */
  private expire(leaseId: string): void {
    const heldLease = this.all.get(leaseId);
    if (heldLease !== undefined) {
      this.all.delete(leaseId);
      if (heldLease.isAttached) {
        this.detach(leaseId);
      }
      this.endLost(leaseId, heldLease, EXPIRED_LOSS);
      this.retainLost(leaseId, heldLease);
    }
  }

  /**
   * Stores a lost lease until the work under it has stopped. Then its lock is released, before the lease expires in the
   * store.
   */
  private retainLost(leaseId: string, heldLease: HeldLease): void {
    const now = this.session.clock.now();
    for (const [id, other] of this.lost) {
      if (now > other.validUntil + other.ttlMs / 2) {
        this.lost.delete(id);
      }
    }
    heldLease.isAttached = false;
    heldLease.undeliveredAcquire = null;
    this.lost.set(leaseId, heldLease);
    if (heldLease.validity === null) {
      this.session.pendingReleases.releaseLost(leaseId);
    }
  }

  private detach(leaseId: string): void {
    this.session.connection?.call({ kind: "nothing" }, (callId) => ({ $case: "detach", value: { callId, leaseId } }));
  }

  /** Sends the attachment of a lease to this stream. */
  attach(leaseId: string): void {
    const { connection } = this.session;
    const heldLease = this.all.get(leaseId);
    if (connection === null || heldLease === undefined) {
      return;
    }
    if (heldLease.pendingRelease !== null) {
      this.session.pendingReleases.send(leaseId);
      return;
    }
    if (heldLease.validity?.isValid() !== true) {
      this.expire(leaseId);
      return;
    }
    heldLease.attachNumber += 1;
    const { lease, attachNumber } = heldLease;
    connection.call({ kind: "attach", key: leaseId }, (callId) => ({
      $case: "attach",
      value: { callId, lease, attachNumber },
    }));
  }

  /** Handles the confirmation of an attachment. */
  onAttached(attached: LeaseAttached): void {
    const { leaseId } = attached;
    this.session.connection?.complete(attached.callId);
    const heldLease = this.all.get(leaseId);
    if (heldLease === undefined) {
      // The lease was lost before the response arrived.
      this.detach(leaseId);
      return;
    }
    heldLease.isAttached = true;
    heldLease.attachedAt = this.session.clock.now();
    if (heldLease.pendingRelease !== null) {
      this.session.pendingReleases.send(leaseId);
      return;
    }
    for (const partialId of [...heldLease.partialReleases.keys()]) {
      this.session.pendingReleases.sendPartial(leaseId, partialId);
    }
    this.session.pendingAcquires.sendForLease(leaseId);
  }

  /** Handles the rejection of an attachment, which is final or retryable. */
  onAttachRefused(leaseId: string, refused: Refused): void {
    if (isRetryable(refused)) {
      this.session.scheduleRetry(withJitter(RETRY_DELAY_MS), { kind: "attach", key: leaseId });
      return;
    }
    const heldLease = this.all.get(leaseId);
    if (heldLease === undefined) {
      return;
    }
    if (heldLease.pendingRelease !== null) {
      this.session.pendingReleases.send(leaseId);
    } else {
      this.onEnded(leaseId, lossFromRefused(refused));
    }
  }

  /** Handles the report of the broker that a lease has ended. */
  onEnded(leaseId: string, loss: Loss): void {
    const heldLease = this.all.get(leaseId);
    if (heldLease === undefined) {
      return;
    }
    this.all.delete(leaseId);
    if (heldLease.pendingRelease !== null) {
      heldLease.pendingRelease.completeEnded(loss);
      return;
    }
    this.endLost(leaseId, heldLease, loss);
    if (loss.reason === "Revoked" || loss.reason === "MaxHold") {
      this.retainLost(leaseId, heldLease);
    }
  }

  /** Ends a lease because the client is shut down. */
  close(leaseId: string, heldLease: HeldLease): void {
    heldLease.undeliveredAcquire?.fail(createFailure("Closed", ""));
    heldLease.undeliveredAcquire = null;
    this.session.pendingReleases.closingCallbacks.push(...(heldLease.pendingRelease?.callbacks ?? []));
    for (const { callback } of heldLease.partialReleases.values()) {
      this.session.pendingReleases.closingCallbacks.push(callback);
    }
    this.endValidity(leaseId, heldLease, { reason: "Closed", message: "" });
  }

  /** Ends the validity of a lost lease, and fails its calls. */
  private endLost(leaseId: string, heldLease: HeldLease, loss: Loss): void {
    log("lock lost: lease %s: %s", leaseId, formatLoss(loss));
    this.endValidity(leaseId, heldLease, loss);
    heldLease.undeliveredAcquire?.fail(leaseLostFailure(loss));
    for (const partialRelease of heldLease.partialReleases.values()) {
      partialRelease.callback(leaseLostFailure(loss));
    }
    heldLease.partialReleases.clear();
    this.session.pendingAcquires.sendForLease(leaseId);
  }

  private endValidity(leaseId: string, heldLease: HeldLease, loss: Loss): void {
    if (heldLease.validity !== null && heldLease.pendingRelease === null) {
      heldLease.validity.end(loss.reason);
      this.session.runtime.notify({ kind: "lost", leaseId, loss });
    }
  }

  /** Ends leases, deliveries and releases whose deadline has passed. */
  checkDeadlines(): void {
    if (this.all.size === 0) {
      return;
    }
    const latest = this.session.clock.latest();
    for (const [leaseId, heldLease] of [...this.all]) {
      if (!heldLease.isDeadlinePassed(latest)) {
        continue;
      }
      if (heldLease.pendingRelease !== null) {
        this.session.pendingReleases.failUnconfirmed(leaseId);
      } else if (heldLease.validity === null) {
        this.discardUndelivered(leaseId, heldLease);
      } else {
        this.expire(leaseId);
      }
    }
  }

  /** Drops an undelivered lease whose validity no heartbeat has extended in time. */
  private discardUndelivered(leaseId: string, heldLease: HeldLease): void {
    this.all.delete(leaseId);
    this.detach(leaseId);
    heldLease.undeliveredAcquire?.fail(
      createFailure("Unavailable", "the grant arrived after the validity of its lease had ended"),
    );
  }

  /** Marks all leases as detached from the stream. Undelivered leases become pending acquires again. */
  onStreamLost(): void {
    for (const [leaseId, heldLease] of [...this.all]) {
      heldLease.isAttached = false;
      if (heldLease.undeliveredAcquire !== null) {
        // The lease was not delivered, so its acquire is sent again.
        this.all.delete(leaseId);
        heldLease.undeliveredAcquire.callId = 0;
        this.session.pendingAcquires.all.set(heldLease.undeliveredAcquire.requestId, heldLease.undeliveredAcquire);
      }
    }
  }

  /** Attaches all leases to a new stream. */
  resumeAll(): void {
    for (const leaseId of [...this.all.keys()]) {
      this.attach(leaseId);
    }
  }
}

function isRequested(params: AcquireParams, lock: LockName): boolean {
  return params.targets.some((target) => isSameLock(lockOf(target), lock));
}

/** Returns the response of a granted acquire, with the tokens of the locks that it acquired. */
function grantedResponse(heldLease: HeldLease, validity: LeaseValidity, params: AcquireParams): CommandResponse {
  const grants = heldLease.lease.grants
    .map((grant) => ({ lock: lockNameFromTarget(grant.target), fencingToken: grant.fencingToken }))
    .filter((grant) => isRequested(params, grant.lock));
  const { leaseId } = heldLease.lease;
  return { kind: "granted", lease: { leaseId, grants, validity: validity.sharedMemory, ttlMs: heldLease.ttlMs } };
}
