// Leases: kept by heartbeats, trusted no longer than was confirmed.

import { debuglog } from "node:util";

import type { Loss } from "../errors.js";
import { shownLoss } from "../errors.js";
import type { HeartbeatAck, LeaseAttached, LeaseExtended, Refused } from "../gen/leasehold/v1/lock_service.js";
import type { Lease as WireLease } from "../gen/leasehold/v1/types.js";
import type { Answer, Call } from "../order.js";
import type { LockName } from "../target.js";
import { isSameLock, lockOf } from "../target.js";
import { Trust } from "../trust.js";
import type { Keeper } from "./keeper.js";
import { jittered } from "./moves.js";
import { failure, isOpen, lossOf, lostFailure, timeMs, wireLock } from "./reading.js";
import type { Part, Release } from "./releases.js";
import type { Wait } from "./waits.js";

const log = debuglog("leasehold");

const REPEAT_PAUSE_MS = 100;
const EXPIRED: Loss = { reason: "Expired", message: "" };

/** A lease of the stream, or on its way to the next one. */
export class Owned {
  ttlMs: number;
  validUntil: number;
  attachNumber: number;
  isHere = true;
  /** When it came to this stream from another one. */
  cameAt: number | null = null;
  /** What its holders trust; null until it is handed out. */
  trust: Trust | null = null;
  /** The call that it was granted to, while too little of its validity is known to hand it out. */
  unborn: Wait | null;
  /** Acquires whose holders have not given back what they have. */
  grips = 1;
  release: Release | null = null;
  readonly parts = new Map<number, Part>();
  private readonly wishedIntervalMs: number;

  constructor(
    public lease: WireLease,
    wait: Wait,
    sent: number,
    readonly grantedAt: number,
  ) {
    this.ttlMs = timeMs(lease.ttl);
    this.validUntil = sent + this.ttlMs;
    this.attachNumber = wait.attachNumber;
    this.unborn = wait;
    this.wishedIntervalMs = timeMs(lease.heartbeatInterval);
  }

  /** How often it needs heartbeats. */
  get intervalMs(): number {
    const third = this.ttlMs / 3;
    return this.wishedIntervalMs === 0 ? third : Math.min(this.wishedIntervalMs, third);
  }

  /** Whether its validity counts from so long ago that a heartbeat is due. */
  isOld(now: number): boolean {
    return now >= this.validUntil - this.ttlMs + this.intervalMs;
  }

  /** Whether its time has passed. */
  isDue(latest: number): boolean {
    if (this.release !== null) {
      return latest >= this.release.goneAt;
    }
    return this.trust === null ? latest > this.grantedAt + this.ttlMs : !this.trust.isValid(latest);
  }

  /** Merges the grants of the call's own locks; the answer may omit grants added by other calls. */
  merge(answer: WireLease, call: Call): void {
    const others = this.lease.grants.filter((grant) => !isAsked(call, wireLock(grant.target)));
    const own = answer.grants.filter((grant) => isAsked(call, wireLock(grant.target)));
    this.lease = { ...answer, grants: [...others, ...own] };
  }

  /** It has that lock no more. */
  dropGrant(gone: LockName): void {
    const grants = this.lease.grants.filter((grant) => !isSameLock(wireLock(grant.target), gone));
    this.lease = { ...this.lease, grants };
  }
}

/** The leases of one stream, by their ids. */
export class Leases {
  readonly all = new Map<string, Owned>();
  /** The lost leases whose work has not stopped yet. */
  readonly lost = new Map<string, Owned>();

  constructor(private readonly keeper: Keeper) {}

  /** Takes on the lease that was granted to a call, with validity since that moment. */
  own(lease: WireLease, wait: Wait, sent: number): void {
    const owned = new Owned(lease, wait, sent, this.keeper.clock.now());
    this.all.set(lease.leaseId, owned);
    this.handOut(owned);
  }

  /** Answers a call under a lease with what it has added to that. */
  enter(lease: WireLease, wait: Wait): void {
    const owned = this.all.get(lease.leaseId);
    if (owned === undefined || owned.trust === null) {
      // It is on this stream again, and must not be renewed.
      this.detach(lease.leaseId);
      wait.fail(lostFailure(EXPIRED));
      return;
    }
    owned.grips += 1;
    owned.merge(lease, wait.ask.call);
    wait.answer(granted(owned, owned.trust, wait.ask.call));
  }

  /** The caller of a lease that is not handed out yet is gone. */
  cancelUnborn(requestId: string): void {
    for (const [leaseId, owned] of this.all) {
      if (owned.unborn?.requestId === requestId) {
        owned.unborn = null;
        this.keeper.releases.giveBack(leaseId, { requestId, locks: [] }, null);
      }
    }
  }

  /** For the first time, if half of the validity is left. Otherwise the next heartbeat does, which is due soon. */
  private handOut(owned: Owned): void {
    const { clock } = this.keeper;
    if (owned.unborn === null || clock.latest() + owned.ttlMs / 2 > owned.validUntil) {
      return;
    }
    const wait = owned.unborn;
    owned.unborn = null;
    owned.trust = Trust.begin(owned.validUntil, owned.ttlMs, clock);
    wait.answer(granted(owned, owned.trust, wait.ask.call));
  }

  /** A heartbeat has reached the store. */
  acknowledged(ack: HeartbeatAck): void {
    const sent = this.keeper.link?.beatSent(ack.sequence);
    if (sent !== undefined) {
      for (const extended of ack.leases) {
        this.extended(sent, extended);
      }
    }
  }

  private extended(sent: number, extended: LeaseExtended): void {
    const owned = this.all.get(extended.leaseId);
    if (owned?.lease.grants.length !== extended.grantCount) {
      return;
    }
    owned.ttlMs = timeMs(extended.ttl);
    const validUntil = sent + owned.ttlMs;
    owned.validUntil = Math.max(owned.validUntil, validUntil);
    if (owned.unborn !== null) {
      this.handOut(owned);
    } else if (owned.release === null && owned.trust?.extend(validUntil, owned.ttlMs) === false) {
      this.lapse(extended.leaseId);
    }
  }

  /**
   * Stops renewing a lease whose validity has passed. The lock is released only after the guarded work has stopped; see
   * `keepLost`.
   */
  private lapse(leaseId: string): void {
    const owned = this.all.get(leaseId);
    if (owned !== undefined) {
      this.all.delete(leaseId);
      if (owned.isHere) {
        this.detach(leaseId);
      }
      this.over(leaseId, owned, EXPIRED);
      this.keepLost(leaseId, owned);
    }
  }

  /**
   * The store keeps the lock of a lost lease until nobody can trust it. It is given back when what it guarded has
   * stopped.
   */
  private keepLost(leaseId: string, owned: Owned): void {
    const now = this.keeper.clock.now();
    for (const [id, one] of this.lost) {
      if (now > one.validUntil + one.ttlMs / 2) {
        this.lost.delete(id);
      }
    }
    owned.isHere = false;
    owned.unborn = null;
    this.lost.set(leaseId, owned);
    if (owned.trust === null) {
      this.keeper.releases.giveBackLost(leaseId);
    }
  }

  private detach(leaseId: string): void {
    this.keeper.link?.call({ kind: "nothing" }, (callId) => ({ $case: "detach", value: { callId, leaseId } }));
  }

  /** Puts a lease on this stream. */
  attach(leaseId: string): void {
    const { link } = this.keeper;
    const owned = this.all.get(leaseId);
    if (link === null || owned === undefined) {
      return;
    }
    if (owned.release !== null) {
      this.keeper.releases.send(leaseId);
      return;
    }
    if (owned.trust?.isValid() !== true) {
      this.lapse(leaseId);
      return;
    }
    owned.attachNumber += 1;
    const { lease, attachNumber } = owned;
    link.call({ kind: "attach", key: leaseId }, (callId) => ({
      $case: "attach",
      value: { callId, lease, attachNumber },
    }));
  }

  /** The lease is on this stream. */
  attached(attached: LeaseAttached): void {
    const { leaseId } = attached;
    this.keeper.link?.answered(attached.callId);
    const owned = this.all.get(leaseId);
    if (owned === undefined) {
      // Lost on the way.
      this.detach(leaseId);
      return;
    }
    owned.isHere = true;
    owned.cameAt = this.keeper.clock.now();
    if (owned.release !== null) {
      this.keeper.releases.send(leaseId);
      return;
    }
    for (const part of [...owned.parts.keys()]) {
      this.keeper.releases.sendPart(leaseId, part);
    }
    this.keeper.waits.sendUnder(leaseId);
  }

  /** The lease is not on this stream, for good or for now. */
  attachRefused(leaseId: string, said: Refused): void {
    if (isOpen(said)) {
      this.keeper.putOff(jittered(REPEAT_PAUSE_MS), { kind: "attach", key: leaseId });
      return;
    }
    const owned = this.all.get(leaseId);
    if (owned === undefined) {
      return;
    }
    if (owned.release !== null) {
      this.keeper.releases.send(leaseId);
    } else {
      this.lose(leaseId, lossOf(said));
    }
  }

  /** The broker says that a lease is over. */
  lose(leaseId: string, loss: Loss): void {
    const owned = this.all.get(leaseId);
    if (owned === undefined) {
      return;
    }
    this.all.delete(leaseId);
    if (owned.release !== null) {
      owned.release.lost(loss);
      return;
    }
    this.over(leaseId, owned, loss);
    if (loss.reason === "Revoked" || loss.reason === "MaxHold") {
      this.keepLost(leaseId, owned);
    }
  }

  /** The client is shut down. */
  close(leaseId: string, owned: Owned): void {
    owned.unborn?.fail(failure("Closed", ""));
    owned.unborn = null;
    this.keeper.releases.closing.push(...(owned.release?.answers ?? []));
    for (const { answer } of owned.parts.values()) {
      this.keeper.releases.closing.push(answer);
    }
    this.end(leaseId, owned, { reason: "Closed", message: "" });
  }

  /** Nobody may rely on it any more. */
  private over(leaseId: string, owned: Owned, loss: Loss): void {
    log("lock lost: lease %s: %s", leaseId, shownLoss(loss));
    this.end(leaseId, owned, loss);
    owned.unborn?.fail(lostFailure(loss));
    for (const part of owned.parts.values()) {
      part.answer(lostFailure(loss));
    }
    owned.parts.clear();
    this.keeper.waits.sendUnder(leaseId);
  }

  private end(leaseId: string, owned: Owned, loss: Loss): void {
    if (owned.trust !== null && owned.release === null) {
      owned.trust.end(loss.reason);
      this.keeper.core.tell({ kind: "lost", leaseId, loss });
    }
  }

  /** Ends what ran out. */
  watchValidity(): void {
    if (this.all.size === 0) {
      return;
    }
    const latest = this.keeper.clock.latest();
    for (const [leaseId, owned] of [...this.all]) {
      if (!owned.isDue(latest)) {
        continue;
      }
      if (owned.release !== null) {
        this.keeper.releases.unconfirmed(leaseId);
      } else if (owned.trust === null) {
        this.notBorn(leaseId, owned);
      } else {
        this.lapse(leaseId);
      }
    }
  }

  /** No heartbeat has made enough of a late grant. */
  private notBorn(leaseId: string, owned: Owned): void {
    this.all.delete(leaseId);
    this.detach(leaseId);
    owned.unborn?.fail(failure("Unavailable", "the lock was granted so late that nobody could rely on it"));
  }

  /** Nothing is on a stream any more. */
  offStream(): void {
    for (const [leaseId, owned] of [...this.all]) {
      owned.isHere = false;
      if (owned.unborn !== null) {
        // It was not handed out: its call begins again.
        this.all.delete(leaseId);
        owned.unborn.callId = 0;
        this.keeper.waits.all.set(owned.unborn.requestId, owned.unborn);
      }
    }
  }

  /** Brings every lease to a new stream. */
  takeUp(): void {
    for (const leaseId of [...this.all.keys()]) {
      this.attach(leaseId);
    }
  }
}

function isAsked(call: Call, lock: LockName): boolean {
  return call.targets.some((target) => isSameLock(lockOf(target), lock));
}

/** What a call has got of a lease. */
function granted(owned: Owned, trust: Trust, call: Call): Answer {
  const tokens = owned.lease.grants
    .map((grant) => ({ lock: wireLock(grant.target), fencingToken: grant.fencingToken }))
    .filter((token) => isAsked(call, token.lock));
  const { leaseId } = owned.lease;
  return { kind: "granted", granted: { leaseId, tokens, trust: trust.shared, ttlMs: owned.ttlMs } };
}
