// Giving back: the whole lease with its last holder, before that what one of them has.

import type { ServiceError } from "@grpc/grpc-js";

import type { Loss } from "../errors.js";
import type { Refused } from "../gen/leasehold/v1/lock_service.js";
import type { Entry, Failure } from "../order.js";
import type { Keeper } from "./keeper.js";
import type { Owned } from "./leases.js";
import { jittered } from "./moves.js";
import { failure, isOpen, lostFailure, refusal, statusOf } from "./reading.js";

const REPEAT_PAUSE_MS = 100;

/** Told at the end of a release: nothing, or why it did not go as hoped. */
export type Released = (failed: Failure | null) => void;

/** The whole lease is being given back. */
export class Release {
  constructor(
    readonly answers: Released[],
    /** When the store has forgotten it, whatever became of the release. */
    readonly goneAt: number,
  ) {}

  /** Tells everybody who asked for it. */
  answer(failed: Failure | null): void {
    for (const answer of this.answers) {
      answer(failed);
    }
  }

  /**
   * The broker says that the lease is over. It was given back within its validity, so the reason is this release or an
   * earlier sending of it, unless the reason says otherwise.
   */
  lost(loss: Loss): void {
    const isReleased = loss.reason === "Released" || loss.reason === "StoreLost";
    this.answer(isReleased ? null : lostFailure(loss));
  }
}

/** What one holder of several gives back, lock by lock. */
export interface Part {
  entry: Entry;
  answer: Released;
}

/** The releases of one stream's leases. */
export class Releases {
  private lastPart = 0;
  /** Who waits for a release while the client is shut down. */
  closing: Released[] = [];
  /** Number of unary releases under way. */
  alone = 0;

  constructor(private readonly keeper: Keeper) {}

  /** Gives back what one acquire has got. */
  giveBack(leaseId: string, entry: Entry, answer: Released | null): void {
    const released = answer ?? (() => undefined);
    const owned = this.keeper.leases.all.get(leaseId);
    if (owned === undefined) {
      // It was lost before; whoever asks knows why.
      released(lostFailure({ reason: "Closed", message: "" }));
      this.giveBackLost(leaseId);
      return;
    }
    owned.grips -= 1;
    if (owned.release !== null) {
      // A call under the lease was granted while all of it was given back.
      owned.release.answers.push(released);
      return;
    }
    if (owned.grips > 0) {
      this.lastPart += 1;
      owned.parts.set(this.lastPart, { entry: { ...entry, locks: [...entry.locks] }, answer: released });
      this.sendPart(leaseId, this.lastPart);
      return;
    }
    owned.trust?.end("Released");
    const parts = [...owned.parts.values()].map((part) => part.answer);
    owned.parts.clear();
    const goneAt = Math.max(this.keeper.clock.now(), owned.validUntil) + owned.ttlMs / 2;
    owned.release = new Release([...parts, released], goneAt);
    this.send(leaseId);
  }

  /**
   * Drops one grip of a lost lease. After the last one, releases the lease at the broker so that the next waiter need
   * not wait for its expiry.
   */
  giveBackLost(leaseId: string): void {
    const { all, lost } = this.keeper.leases;
    const owned = lost.get(leaseId);
    if (owned === undefined) {
      return;
    }
    owned.grips -= 1;
    if (owned.grips > 0) {
      return;
    }
    lost.delete(leaseId);
    all.set(leaseId, owned);
    owned.release = new Release([], Math.max(this.keeper.clock.now(), owned.validUntil) + owned.ttlMs / 2);
    this.send(leaseId);
  }

  /** The client is shut down, and what it did under leases that are lost is over. */
  giveBackAllLost(): void {
    for (const [leaseId, owned] of [...this.keeper.leases.lost]) {
      owned.grips = 1;
      this.giveBackLost(leaseId);
    }
  }

  /** Sends a release: on the stream, or by itself for a lease that was on another one. */
  send(leaseId: string): void {
    const { link } = this.keeper;
    const owned = this.keeper.leases.all.get(leaseId);
    if (link === null || owned === undefined) {
      return;
    }
    if (owned.isHere) {
      link.call({ kind: "release", key: leaseId }, (callId) => ({
        $case: "release",
        value: { callId, leaseId, requestId: "" },
      }));
      return;
    }
    this.alone += 1;
    const done = this.keeper.core.guarded((error: ServiceError | null) => {
      this.alone -= 1;
      if (error === null) {
        this.released(leaseId);
      } else {
        this.refused(leaseId, statusOf(error));
      }
      this.keeper.closeLink();
    });
    link.release({ lease: owned.lease, requestId: "" }, done);
  }

  /** A release is confirmed. */
  released(leaseId: string): void {
    this.take(leaseId)?.answer(null);
  }

  /** A release is not confirmed, for good or for now. */
  refused(leaseId: string, said: Refused): void {
    if (isOpen(said)) {
      this.keeper.putOff(jittered(REPEAT_PAUSE_MS), { kind: "release", key: leaseId });
      return;
    }
    const release = this.take(leaseId);
    const { loss } = refusal(said);
    if (loss !== undefined) {
      release?.lost(loss);
    } else {
      release?.answer(failure("Refused", said.message));
    }
  }

  /** Nobody has confirmed a release while the lease could have lived. */
  unconfirmed(leaseId: string): void {
    this.take(leaseId)?.answer(failure("Unconfirmed", ""));
  }

  private take(leaseId: string): Release | null {
    const release = this.keeper.leases.all.get(leaseId)?.release ?? null;
    if (release !== null) {
      this.keeper.leases.all.delete(leaseId);
    }
    return release;
  }

  /** Sends the release of the next lock of a part. Elsewhere than on its stream it would be refused. */
  sendPart(leaseId: string, number: number): void {
    const { link } = this.keeper;
    const owned = this.keeper.leases.all.get(leaseId);
    const entry = owned?.parts.get(number)?.entry;
    const lock = entry?.locks.at(-1);
    if (link === null || owned?.isHere !== true || entry === undefined || lock === undefined) {
      return;
    }
    link.call({ kind: "release", key: leaseId, part: number }, (callId) => ({
      $case: "release",
      value: { callId, leaseId, lock, requestId: entry.requestId },
    }));
  }

  /** A lock of a part is given back, with so many entries of it left. */
  partReleased(leaseId: string, number: number, holdCount: number): void {
    const owned = this.keeper.leases.all.get(leaseId);
    const part = owned?.parts.get(number);
    const done = part?.entry.locks.pop();
    if (owned === undefined || part === undefined || done === undefined) {
      return;
    }
    if (holdCount === 0) {
      owned.dropGrant(done);
    }
    if (part.entry.locks.length > 0) {
      this.sendPart(leaseId, number);
    } else {
      endPart(owned, number, null);
    }
  }

  /** A lock of a part is not given back, for good or for now. */
  partRefused(leaseId: string, number: number, said: Refused): void {
    const owned = this.keeper.leases.all.get(leaseId);
    if (isOpen(said)) {
      this.keeper.putOff(jittered(REPEAT_PAUSE_MS), { kind: "release", key: leaseId, part: number });
    } else if (owned !== undefined) {
      endPart(owned, number, failure("Refused", said.message));
    }
  }

  /** The stream was closed, with all that was on it, or could not be. */
  closed(isClosed: boolean): void {
    const answers = this.closing;
    this.closing = [];
    for (const answer of answers) {
      answer(isClosed ? null : failure("Unconfirmed", ""));
    }
  }
}

function endPart(owned: Owned, number: number, failed: Failure | null): void {
  const part = owned.parts.get(number);
  owned.parts.delete(number);
  part?.answer(failed);
}
