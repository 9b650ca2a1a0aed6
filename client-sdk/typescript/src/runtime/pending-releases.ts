// Releases: of the whole lease with its last acquire, and of the locks of earlier acquires one by one.

import type { ServiceError } from "@grpc/grpc-js";

import type { Loss } from "../errors.js";
import type { Refused } from "../gen/leasehold/v1/lock_service.js";
import type { AcquireScope, Failure } from "../messages.js";
import { createFailure, failureFromRefused, isRetryable, leaseLostFailure, refusedFromStatus } from "./convert.js";
import { withJitter } from "./failover.js";
import type { HeldLease } from "./leases.js";
import type { Session } from "./session.js";

const RETRY_DELAY_MS = 100;

/** Callback for the end of a release: null, or the failure. */
export type ReleaseCallback = (failure: Failure | null) => void;

/** The release of a whole lease. */
export class PendingRelease {
  constructor(
    readonly callbacks: ReleaseCallback[],
    /** Time at which the lease has expired in the store, even if no release arrived. */
    readonly endedAt: number,
  ) {}

  /** Calls the callbacks of all callers of the release. */
  complete(failure: Failure | null): void {
    for (const callback of this.callbacks) {
      callback(failure);
    }
  }

  /**
   * Completes the release because the broker reports that the lease has ended. The release was sent within the validity
   * of the lease. `Released` and `StoreLost` therefore mean that this release or an earlier attempt of it succeeded.
   */
  completeEnded(loss: Loss): void {
    const isReleased = loss.reason === "Released" || loss.reason === "StoreLost";
    this.complete(isReleased ? null : leaseLostFailure(loss));
  }
}

/** The release of the locks of one acquire of several, lock by lock. */
export interface PartialRelease {
  scope: AcquireScope;
  callback: ReleaseCallback;
}

/** The releases of one stream's leases. */
export class PendingReleases {
  private lastPartialId = 0;
  /** Callbacks of the releases that are pending while the client is shut down. */
  closingCallbacks: ReleaseCallback[] = [];
  /** Number of pending unary releases. */
  unaryCount = 0;

  constructor(private readonly session: Session) {}

  /** Releases the locks of one acquire. The last acquire of a lease releases the whole lease. */
  release(leaseId: string, scope: AcquireScope, callback: ReleaseCallback | null): void {
    const releaseCallback = callback ?? (() => undefined);
    const heldLease = this.session.leases.all.get(leaseId);
    if (heldLease === undefined) {
      // The lease was lost before; the program's thread has the reason.
      releaseCallback(leaseLostFailure({ reason: "Closed", message: "" }));
      this.releaseLost(leaseId);
      return;
    }
    heldLease.acquireCount -= 1;
    if (heldLease.pendingRelease !== null) {
      // A call under the lease was granted while the whole lease was being released.
      heldLease.pendingRelease.callbacks.push(releaseCallback);
      return;
    }
    if (heldLease.acquireCount > 0) {
      this.lastPartialId += 1;
      heldLease.partialReleases.set(this.lastPartialId, {
        scope: { ...scope, locks: [...scope.locks] },
        callback: releaseCallback,
      });
      this.sendPartial(leaseId, this.lastPartialId);
      return;
    }
    heldLease.validity?.end("Released");
    const partialCallbacks = [...heldLease.partialReleases.values()].map((partialRelease) => partialRelease.callback);
    heldLease.partialReleases.clear();
    const endedAt = Math.max(this.session.clock.now(), heldLease.validUntil) + heldLease.ttlMs / 2;
    heldLease.pendingRelease = new PendingRelease([...partialCallbacks, releaseCallback], endedAt);
    this.send(leaseId);
  }

  /**
   * Drops one acquire of a lost lease. After the last one, releases the lease at the broker so that the next waiter
   * need not wait for its expiry.
   */
  releaseLost(leaseId: string): void {
    const { all, lost } = this.session.leases;
    const heldLease = lost.get(leaseId);
    if (heldLease === undefined) {
      return;
    }
    heldLease.acquireCount -= 1;
    if (heldLease.acquireCount > 0) {
      return;
    }
    lost.delete(leaseId);
    all.set(leaseId, heldLease);
    heldLease.pendingRelease = new PendingRelease(
      [],
      Math.max(this.session.clock.now(), heldLease.validUntil) + heldLease.ttlMs / 2,
    );
    this.send(leaseId);
  }

  /** Releases all lost leases when the client is shut down, because the work under them has ended. */
  releaseAllLost(): void {
    for (const [leaseId, heldLease] of [...this.session.leases.lost]) {
      heldLease.acquireCount = 1;
      this.releaseLost(leaseId);
    }
  }

  /** Sends a release: on the stream, or as a unary call for a lease that is not attached to the stream. */
  send(leaseId: string): void {
    const { connection } = this.session;
    const heldLease = this.session.leases.all.get(leaseId);
    if (connection === null || heldLease === undefined) {
      return;
    }
    if (heldLease.isAttached) {
      connection.call({ kind: "release", key: leaseId }, (callId) => ({
        $case: "release",
        value: { callId, leaseId, requestId: "" },
      }));
      return;
    }
    this.unaryCount += 1;
    const callback = this.session.runtime.wrapCallback((error: ServiceError | null) => {
      this.unaryCount -= 1;
      if (error === null) {
        this.onReleased(leaseId);
      } else {
        this.onRefused(leaseId, refusedFromStatus(error));
      }
      this.session.closeConnection();
    });
    connection.release({ lease: heldLease.lease, requestId: "" }, callback);
  }

  /** Handles the confirmation of a release. */
  onReleased(leaseId: string): void {
    this.remove(leaseId)?.complete(null);
  }

  /** Handles the rejection of a release, which is final or retryable. */
  onRefused(leaseId: string, refused: Refused): void {
    if (isRetryable(refused)) {
      this.session.scheduleRetry(withJitter(RETRY_DELAY_MS), { kind: "release", key: leaseId });
      return;
    }
    const pendingRelease = this.remove(leaseId);
    const { loss } = failureFromRefused(refused);
    if (loss !== undefined) {
      pendingRelease?.completeEnded(loss);
    } else {
      pendingRelease?.complete(createFailure("Refused", refused.message));
    }
  }

  /** Fails a release that no broker confirmed while the lease could live. */
  failUnconfirmed(leaseId: string): void {
    this.remove(leaseId)?.complete(createFailure("Unconfirmed", ""));
  }

  private remove(leaseId: string): PendingRelease | null {
    const pendingRelease = this.session.leases.all.get(leaseId)?.pendingRelease ?? null;
    if (pendingRelease !== null) {
      this.session.leases.all.delete(leaseId);
    }
    return pendingRelease;
  }

  /**
   * Sends the release of the next lock of a partial release. Brokers reject it on other streams than that of the lease.
   */
  sendPartial(leaseId: string, partialId: number): void {
    const { connection } = this.session;
    const heldLease = this.session.leases.all.get(leaseId);
    const scope = heldLease?.partialReleases.get(partialId)?.scope;
    const lock = scope?.locks.at(-1);
    if (connection === null || heldLease?.isAttached !== true || scope === undefined || lock === undefined) {
      return;
    }
    connection.call({ kind: "release", key: leaseId, partialId }, (callId) => ({
      $case: "release",
      value: { callId, leaseId, lock, requestId: scope.requestId },
    }));
  }

  /**
   * Handles the confirmed release of one lock of a partial release. `holdCount` is the number of remaining entries of
   * the lock.
   */
  onPartialRelease(leaseId: string, partialId: number, holdCount: number): void {
    const heldLease = this.session.leases.all.get(leaseId);
    const partialRelease = heldLease?.partialReleases.get(partialId);
    const releasedLock = partialRelease?.scope.locks.pop();
    if (heldLease === undefined || partialRelease === undefined || releasedLock === undefined) {
      return;
    }
    if (holdCount === 0) {
      heldLease.removeGrant(releasedLock);
    }
    if (partialRelease.scope.locks.length > 0) {
      this.sendPartial(leaseId, partialId);
    } else {
      completePartial(heldLease, partialId, null);
    }
  }

  /** Handles the rejected release of one lock of a partial release. The rejection is final or retryable. */
  onPartialReleaseRefused(leaseId: string, partialId: number, refused: Refused): void {
    const heldLease = this.session.leases.all.get(leaseId);
    if (isRetryable(refused)) {
      this.session.scheduleRetry(withJitter(RETRY_DELAY_MS), { kind: "release", key: leaseId, partialId });
    } else if (heldLease !== undefined) {
      completePartial(heldLease, partialId, createFailure("Refused", refused.message));
    }
  }

  /** Completes all pending releases at the shutdown. `isStreamClosed`: the stream was closed with its leases. */
  onSessionClosed(isStreamClosed: boolean): void {
    const callbacks = this.closingCallbacks;
    this.closingCallbacks = [];
    for (const callback of callbacks) {
      callback(isStreamClosed ? null : createFailure("Unconfirmed", ""));
    }
  }
}

function completePartial(heldLease: HeldLease, partialId: number, failure: Failure | null): void {
  const partialRelease = heldLease.partialReleases.get(partialId);
  heldLease.partialReleases.delete(partialId);
  partialRelease?.callback(failure);
}
