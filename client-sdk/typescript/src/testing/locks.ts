// The locks of a fake broker: who holds them, and who waits in which order.

import { randomUUID } from "node:crypto";

import type { Backend, Caller } from "../backend.js";
import type { Clock } from "../clock.js";
import type { AcquireError, LeaseholdError, Loss } from "../errors.js";
import {
  ClosedError,
  HeldError,
  LeaseLostError,
  LimitMismatchError,
  UpgradeDeniedError,
  WaitTimeoutError,
} from "../errors.js";
import { Grip } from "../grip.js";
import type { Ask, Entry, Holder, LockState, Token } from "../order.js";
import type { LockName, Target } from "../target.js";
import { isSameLock, lockOf, shownLock } from "../target.js";
import { Trust } from "../trust.js";

/** All of a lock: an exclusive holder takes it, a shared one takes 1 of it. */
const WHOLE = 2 ** 30;
const TTL_DEFAULT_MS = 10_000;
const FOREVER = Number.MAX_SAFE_INTEGER / 2;
const HOLDERS_MAX = 5;
const MISMATCH = "another limit or mode is in use on this lock, or it has not so many permits";
const UPGRADE = "the lease shares the lock, and cannot have it alone";

/** A lock in the hands of a lease. */
interface Hold {
  leaseId: string;
  limit: number;
  holder: Holder;
  /** One for each entry, with what it weighs. */
  entries: Map<string, number>;
}

interface Waiter {
  client: Backend;
  ask: Ask;
  caller: Caller;
  locks: LockName[];
  timer: NodeJS.Timeout | undefined;
  told: string;
}

/** A lease, its trust, and what each acquire has of it. */
interface FakeLease {
  client: Backend;
  trust: Trust;
  grips: Grip[];
}

/** What a target takes of its lock, and how much that has; 0: as much as is in use. */
function weightOf(target: Target): [weight: number, limit: number] {
  if (target.permits !== undefined) {
    return [Math.max(target.permits, 1), target.limit ?? 0];
  }
  return target.shared === true ? [1, WHOLE] : [WHOLE, WHOLE];
}

/** As much as its strongest entry. */
function held(hold: Hold): number {
  return Math.max(...hold.entries.values());
}

/** All locks of a fake broker. */
export class Locks {
  private readonly holds = new Map<string, Hold[]>();
  private readonly leases = new Map<string, FakeLease>();
  private line: Waiter[] = [];
  private lastToken = 0;
  private readonly refusals = new Map<string, LeaseholdError[]>();
  private readonly closed = new Set<Backend>();

  constructor(private readonly clock: Clock) {}

  /** Takes locks, at once or in its turn. */
  acquire(client: Backend, ask: Ask, caller: Caller): void {
    const error = this.never(client, ask);
    if (error !== null) {
      caller.failed(error);
      return;
    }
    const waiter: Waiter = { client, ask, caller, locks: ask.call.targets.map(lockOf), timer: undefined, told: "" };
    this.line.push(waiter);
    this.settle();
    if (!this.line.includes(waiter)) {
      return;
    }
    if (ask.waitMs > 0) {
      waiter.timer = setTimeout(() => {
        this.refuse(waiter);
      }, ask.waitMs);
    } else {
      this.refuse(waiter);
    }
  }

  /** The next call for this lock gets this answer. */
  refuseNext(lock: LockName, error: AcquireError): void {
    const key = shownLock(lock);
    this.refusals.set(key, [...(this.refusals.get(key) ?? []), error]);
  }

  /** The caller is gone. */
  cancel(requestId: string): void {
    const waiter = this.line.find(({ ask }) => ask.call.requestId === requestId);
    if (waiter !== undefined) {
      this.leave(waiter);
      this.settle();
    }
  }

  /** Gives back what one acquire has got. */
  release(grip: Grip, entry: Entry): void {
    for (const lock of entry.locks) {
      const holds = this.of(lock);
      holds.find((hold) => hold.leaseId === grip.leaseId)?.entries.delete(entry.requestId);
      this.holds.set(
        shownLock(lock),
        holds.filter((hold) => hold.entries.size > 0),
      );
    }
    const isHeld = [...this.holds.values()].flat().some((hold) => hold.leaseId === grip.leaseId);
    if (!isHeld) {
      this.leases.get(grip.leaseId)?.trust.end("Released");
      this.leases.delete(grip.leaseId);
    }
    this.settle();
  }

  /** Takes a lock away from everybody who holds it; how many leases are over. */
  lose(lock: LockName, loss: Loss): number {
    const gone = this.of(lock).map((hold) => hold.leaseId);
    this.end(gone, loss);
    return gone.length;
  }

  /** A client is shut down: what it holds is free, and its calls are over. */
  close(client: Backend): void {
    this.closed.add(client);
    for (const waiter of this.line.filter((one) => one.client === client)) {
      this.leave(waiter);
      waiter.caller.failed(new ClosedError());
    }
    const own = [...this.leases].filter(([, lease]) => lease.client === client).map(([leaseId]) => leaseId);
    this.end(own, { reason: "Closed", message: "" });
  }

  /** Who holds a lock. */
  holders(lock: LockName): Holder[] {
    return this.of(lock).map((hold) => hold.holder);
  }

  /** How many calls wait for a lock. */
  queueLength(lock: LockName): number {
    return this.line.filter(({ locks }) => locks.some((one) => isSameLock(one, lock))).length;
  }

  /** What a client sees of a lock. */
  look(client: Backend, lock: LockName): LockState | null {
    if (this.closed.has(client)) {
      throw new ClosedError();
    }
    const [holders, queueLength] = [this.holders(lock), this.queueLength(lock)];
    if (holders.length === 0 && queueLength === 0) {
      return null;
    }
    const tokens = holders.map((one) => one.fencingToken);
    return { holders, queueLength, lastFencingToken: tokens.length === 0 ? this.lastToken : Math.max(...tokens) };
  }

  private of(lock: LockName): Hold[] {
    return this.holds.get(shownLock(lock)) ?? [];
  }

  /** Why a call can never be granted. */
  private never(client: Backend, ask: Ask): LeaseholdError | null {
    if (this.closed.has(client)) {
      return new ClosedError();
    }
    if (ask.under !== undefined && !this.leases.has(ask.under)) {
      return new LeaseLostError({ reason: "Released", message: "" });
    }
    for (const target of ask.call.targets) {
      const refusal = this.refusals.get(shownLock(lockOf(target)))?.shift();
      if (refusal !== undefined) {
        return refusal;
      }
      const holds = this.of(lockOf(target));
      const inUse = holds[0]?.limit;
      const [weight, asked] = weightOf(target);
      const limit = asked === 0 ? (inUse ?? 1) : asked;
      if ((inUse !== undefined && inUse !== limit) || weight > limit) {
        return new LimitMismatchError(MISMATCH);
      }
      const own = holds.find((hold) => hold.leaseId === ask.under);
      if (own !== undefined && held(own) < weight) {
        return new UpgradeDeniedError(UPGRADE);
      }
    }
    return null;
  }

  private leave(waiter: Waiter): void {
    clearTimeout(waiter.timer);
    this.line = this.line.filter((one) => one !== waiter);
  }

  private end(gone: string[], loss: Loss): void {
    for (const [lock, holds] of this.holds) {
      this.holds.set(
        lock,
        holds.filter((hold) => !gone.includes(hold.leaseId)),
      );
    }
    const over = gone.map((leaseId) => this.leases.get(leaseId));
    for (const leaseId of gone) {
      this.leases.delete(leaseId);
    }
    for (const lease of over) {
      lease?.trust.end(loss.reason);
      for (const grip of lease?.grips ?? []) {
        grip.end(loss);
      }
    }
    this.settle();
  }

  private refuse(waiter: Waiter): void {
    this.leave(waiter);
    const holders = waiter.locks.flatMap((lock) => this.holders(lock)).slice(0, HOLDERS_MAX);
    const queueLength = Math.max(...waiter.locks.map((lock) => this.queueLength(lock)));
    const message = `${waiter.locks.map(shownLock).join(", ")} is held`;
    const made = waiter.ask.waitMs > 0 ? WaitTimeoutError : HeldError;
    waiter.caller.failed(new made(message, { holders, queueLength }));
    this.settle();
  }

  /** Grants what can be granted, in the order of the line. */
  private settle(): void {
    const wanted: LockName[] = [];
    for (const waiter of [...this.line]) {
      const { under } = waiter.ask;
      if (under !== undefined && !this.leases.has(under)) {
        this.leave(waiter);
        waiter.caller.failed(new LeaseLostError({ reason: "Released", message: "" }));
      } else if (!wanted.some((lock) => waiter.locks.some((one) => isSameLock(one, lock))) && this.fits(waiter)) {
        this.leave(waiter);
        this.grant(waiter);
      } else {
        wanted.push(...waiter.locks);
      }
    }
    for (const waiter of [...this.line]) {
      this.tellPlace(waiter);
    }
  }

  private fits(waiter: Waiter): boolean {
    return waiter.ask.call.targets.every((target) => {
      const holds = this.of(lockOf(target));
      if (holds.some((hold) => hold.leaseId === waiter.ask.under)) {
        return true;
      }
      const [weight, asked] = weightOf(target);
      const limit = holds[0]?.limit ?? (asked === 0 ? 1 : asked);
      return holds.reduce((sum, hold) => sum + held(hold), weight) <= limit;
    });
  }

  private grant({ client, ask, caller }: Waiter): void {
    const leaseId = ask.under ?? randomUUID();
    const ttlMs = ask.call.ttlMs ?? TTL_DEFAULT_MS;
    let lease = this.leases.get(leaseId);
    if (lease === undefined) {
      lease = { client, trust: Trust.begin(FOREVER, ttlMs, this.clock), grips: [] };
      this.leases.set(leaseId, lease);
    }
    const tokens = ask.call.targets.map((target) => this.enter(leaseId, target, ask, ttlMs));
    const grip = new Grip({ leaseId, tokens, ttlMs }, ask.call.requestId, lease.trust, client);
    lease.grips.push(grip);
    caller.granted(grip);
  }

  private enter(leaseId: string, target: Target, ask: Ask, ttlMs: number): Token {
    const [weight, asked] = weightOf(target);
    const lock = lockOf(target);
    const holds = this.of(lock);
    const own = holds.find((hold) => hold.leaseId === leaseId);
    if (own !== undefined) {
      own.entries.set(ask.call.requestId, weight);
      return { lock, fencingToken: own.holder.fencingToken };
    }
    this.lastToken += 1;
    const fencingToken = this.lastToken;
    const { id: owner, reason } = ask.call.owner;
    const holder = { leaseId, owner, reason, fencingToken, since: new Date(), remainingMs: ttlMs };
    const limit = holds[0]?.limit ?? (asked === 0 ? 1 : asked);
    const hold = { leaseId, limit, holder, entries: new Map([[ask.call.requestId, weight]]) };
    this.holds.set(shownLock(lock), [...holds, hold]);
    return { lock, fencingToken };
  }

  private tellPlace(waiter: Waiter): void {
    const [lock] = waiter.locks;
    if (lock === undefined) {
      return;
    }
    const before = this.line.slice(0, this.line.indexOf(waiter));
    const position = 1 + before.filter(({ locks }) => locks.some((one) => isSameLock(one, lock))).length;
    const place = { position, queueLength: this.queueLength(lock), holders: this.holders(lock).slice(0, HOLDERS_MAX) };
    const told = JSON.stringify(place);
    if (told !== waiter.told) {
      waiter.told = told;
      waiter.caller.place(place);
    }
  }
}
