// Locks of a fake broker: holders, queue, grants and losses.

import { randomUUID } from "node:crypto";

import type { AcquireCallbacks, Backend } from "../backend.js";
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
import { LeaseHandle } from "../lease-handle.js";
import type { AcquireCommand, AcquireScope, Holder, LockGrant, LockState, PermitUsage } from "../messages.js";
import { createPermitUsage } from "../messages.js";
import type { LockName, Target } from "../target.js";
import { formatLock, isSameLock, lockOf } from "../target.js";
import { LeaseValidity } from "../validity.js";
import type { Hold } from "./holds.js";
import { EXCLUSIVE_WEIGHT, holdWeight, totalWeight, weightOf } from "./holds.js";

const TTL_DEFAULT_MS = 10_000;
const VALID_FOREVER_MS = Number.MAX_SAFE_INTEGER / 2;
const HOLDERS_MAX = 5;
const MISMATCH_MESSAGE = "another limit or mode is in use on this lock, or the request exceeds its permits";
const UPGRADE_MESSAGE = "the lease holds the lock in a weaker mode and cannot upgrade it";

interface Waiter {
  client: Backend;
  command: AcquireCommand;
  callbacks: AcquireCallbacks;
  locks: LockName[];
  timer: NodeJS.Timeout | undefined;
  notified: string;
}

/** A lease with its validity and the handles of its acquires. */
interface FakeLease {
  client: Backend;
  validity: LeaseValidity;
  handles: LeaseHandle[];
}

/** State of all locks of a fake broker. */
export class Locks {
  private readonly holds = new Map<string, Hold[]>();
  /** Limits that `setLimit` has set. */
  private readonly setLimits = new Map<string, number>();
  private readonly leases = new Map<string, FakeLease>();
  private queue: Waiter[] = [];
  private lastToken = 0;
  private readonly nextErrors = new Map<string, LeaseholdError[]>();
  private readonly closedClients = new Set<Backend>();

  constructor(private readonly clock: Clock) {}

  /** Acquires locks, at once or after waiting in the queue. */
  acquire(client: Backend, command: AcquireCommand, callbacks: AcquireCallbacks): void {
    const error = this.finalError(client, command);
    if (error !== null) {
      callbacks.onFailed(error);
      return;
    }
    const waiter: Waiter = {
      client,
      command,
      callbacks,
      locks: command.params.targets.map(lockOf),
      timer: undefined,
      notified: "",
    };
    this.queue.push(waiter);
    this.processQueue();
    if (!this.queue.includes(waiter)) {
      return;
    }
    if (command.waitMs > 0) {
      waiter.timer = setTimeout(() => {
        this.reject(waiter);
      }, command.waitMs);
    } else {
      this.reject(waiter);
    }
  }

  /** Rejects the next call for this lock with this error. */
  rejectNext(lock: LockName, error: AcquireError): void {
    const key = formatLock(lock);
    this.nextErrors.set(key, [...(this.nextErrors.get(key) ?? []), error]);
  }

  /** Removes a call from the queue. */
  cancel(requestId: string): void {
    const waiter = this.queue.find(({ command }) => command.params.requestId === requestId);
    if (waiter !== undefined) {
      this.removeWaiter(waiter);
      this.processQueue();
    }
  }

  /** Releases the locks of one acquire. */
  release(handle: LeaseHandle, scope: AcquireScope): void {
    for (const lock of scope.locks) {
      const holds = this.holdsOf(lock);
      holds.find((hold) => hold.leaseId === handle.leaseId)?.entries.delete(scope.requestId);
      this.holds.set(
        formatLock(lock),
        holds.filter((hold) => hold.entries.size > 0),
      );
    }
    const isHeld = [...this.holds.values()].flat().some((hold) => hold.leaseId === handle.leaseId);
    if (!isHeld) {
      this.leases.get(handle.leaseId)?.validity.end("Released");
      this.leases.delete(handle.leaseId);
    }
    this.processQueue();
  }

  /** Ends all leases that hold a lock, and returns their number. */
  lose(lock: LockName, loss: Loss): number {
    const leaseIds = this.holdsOf(lock).map((hold) => hold.leaseId);
    this.end(leaseIds, loss);
    return leaseIds.length;
  }

  /** Shuts a client down: its leases end, and its calls fail. */
  close(client: Backend): void {
    this.closedClients.add(client);
    for (const waiter of this.queue.filter((other) => other.client === client)) {
      this.removeWaiter(waiter);
      waiter.callbacks.onFailed(new ClosedError());
    }
    const leaseIds = [...this.leases].filter(([, lease]) => lease.client === client).map(([leaseId]) => leaseId);
    this.end(leaseIds, { reason: "Closed", message: "" });
  }

  /** Returns the holders of a lock. */
  holders(lock: LockName): Holder[] {
    return this.holdsOf(lock).map((hold) => hold.holder);
  }

  /** Returns the number of calls that wait for a lock. */
  queueLength(lock: LockName): number {
    return this.queue.filter(({ locks }) => locks.some((other) => isSameLock(other, lock))).length;
  }

  /** Returns the state of a lock, or null if it has neither holders nor waiters, and no set limit. */
  getState(client: Backend, lock: LockName): LockState | null {
    this.checkOpen(client);
    const [holders, queueLength] = [this.holders(lock), this.queueLength(lock)];
    if (holders.length === 0 && queueLength === 0 && !this.isLimitSet(lock)) {
      return null;
    }
    const fencingTokens = holders.map((other) => other.fencingToken);
    return {
      holders,
      queueLength,
      lastFencingToken: fencingTokens.length === 0 ? this.lastToken : Math.max(...fencingTokens),
      closure: undefined,
      permitUsage: this.permitUsage(lock),
    };
  }

  /** Sets the limit of a semaphore, or removes it if `limit` is null. Returns the previous limit. */
  setLimit(client: Backend, lock: LockName, limit: number | null): number | null {
    this.checkOpen(client);
    const key = formatLock(lock);
    if (limit === null) {
      const previous = this.setLimits.get(key) ?? null;
      this.setLimits.delete(key);
      return previous;
    }
    const previous = this.limitInUse(lock) ?? null;
    if (previous === EXCLUSIVE_WEIGHT) {
      throw new LimitMismatchError(MISMATCH_MESSAGE);
    }
    this.setLimits.set(key, limit);
    for (const hold of this.holdsOf(lock)) {
      // The limit stays in use after its removal.
      hold.limit = limit;
    }
    const exceedsLimit = (target: Target) => isSameLock(lockOf(target), lock) && weightOf(target)[0] > limit;
    for (const waiter of this.queue.filter(({ command }) => command.params.targets.some(exceedsLimit))) {
      this.removeWaiter(waiter);
      waiter.callbacks.onFailed(new LimitMismatchError(MISMATCH_MESSAGE));
    }
    this.processQueue();
    return previous;
  }

  private checkOpen(client: Backend): void {
    if (this.closedClients.has(client)) {
      throw new ClosedError();
    }
  }

  private holdsOf(lock: LockName): Hold[] {
    return this.holds.get(formatLock(lock)) ?? [];
  }

  private isLimitSet(lock: LockName): boolean {
    return this.setLimits.has(formatLock(lock));
  }

  private limitInUse(lock: LockName): number | undefined {
    return this.setLimits.get(formatLock(lock)) ?? this.holdsOf(lock)[0]?.limit;
  }

  /** Returns the limit that applies to a target: the limit in use, or that of the target. */
  private limitOf(target: Target): number {
    const [, requestedLimit] = weightOf(target);
    return this.limitInUse(lockOf(target)) ?? (requestedLimit === 0 ? 1 : requestedLimit);
  }

  private permitUsage(lock: LockName): PermitUsage | undefined {
    const limit = this.limitInUse(lock);
    const isSemaphore = limit !== undefined && limit !== EXCLUSIVE_WEIGHT;
    return isSemaphore ? createPermitUsage(limit, totalWeight(this.holdsOf(lock)), this.isLimitSet(lock)) : undefined;
  }

  /** Returns true if a target needs another limit or mode than the lock has, or more permits. */
  private hasLimitMismatch(target: Target): boolean {
    const [weight, requestedLimit] = weightOf(target);
    const limit = this.limitOf(target);
    const isOverridden = this.isLimitSet(lockOf(target)) && requestedLimit !== EXCLUSIVE_WEIGHT;
    return weight > limit || (requestedLimit !== limit && requestedLimit !== 0 && !isOverridden);
  }

  /** Returns the error of a call that can never be granted, or null. */
  private finalError(client: Backend, command: AcquireCommand): LeaseholdError | null {
    if (this.closedClients.has(client)) {
      return new ClosedError();
    }
    if (command.under !== undefined && !this.leases.has(command.under)) {
      return new LeaseLostError({ reason: "Released", message: "" });
    }
    for (const target of command.params.targets) {
      const nextError = this.nextErrors.get(formatLock(lockOf(target)))?.shift();
      if (nextError !== undefined) {
        return nextError;
      }
      if (this.hasLimitMismatch(target)) {
        return new LimitMismatchError(MISMATCH_MESSAGE);
      }
      const [weight] = weightOf(target);
      const currentHold = this.holdsOf(lockOf(target)).find((hold) => hold.leaseId === command.under);
      if (currentHold !== undefined && holdWeight(currentHold) < weight) {
        return new UpgradeDeniedError(UPGRADE_MESSAGE);
      }
    }
    return null;
  }

  private removeWaiter(waiter: Waiter): void {
    clearTimeout(waiter.timer);
    this.queue = this.queue.filter((other) => other !== waiter);
  }

  private end(leaseIds: string[], loss: Loss): void {
    for (const [lock, holds] of this.holds) {
      this.holds.set(
        lock,
        holds.filter((hold) => !leaseIds.includes(hold.leaseId)),
      );
    }
    const endedLeases = leaseIds.map((leaseId) => this.leases.get(leaseId));
    for (const leaseId of leaseIds) {
      this.leases.delete(leaseId);
    }
    for (const lease of endedLeases) {
      lease?.validity.end(loss.reason);
      for (const handle of lease?.handles ?? []) {
        handle.recordLoss(loss);
      }
    }
    this.processQueue();
  }

  private reject(waiter: Waiter): void {
    this.removeWaiter(waiter);
    const holders = waiter.locks.flatMap((lock) => this.holders(lock)).slice(0, HOLDERS_MAX);
    const queueLength = Math.max(...waiter.locks.map((lock) => this.queueLength(lock)));
    const message = `${waiter.locks.map(formatLock).join(", ")} is held`;
    const errorClass = waiter.command.waitMs > 0 ? WaitTimeoutError : HeldError;
    waiter.callbacks.onFailed(new errorClass(message, { holders, queueLength }));
    this.processQueue();
  }

  /** Grants all calls that can be granted, in the order of the queue, and sends queue positions to the others. */
  private processQueue(): void {
    const blockedLocks: LockName[] = [];
    for (const waiter of [...this.queue]) {
      const { under } = waiter.command;
      if (under !== undefined && !this.leases.has(under)) {
        this.removeWaiter(waiter);
        waiter.callbacks.onFailed(new LeaseLostError({ reason: "Released", message: "" }));
      } else if (
        !blockedLocks.some((lock) => waiter.locks.some((other) => isSameLock(other, lock))) &&
        this.hasCapacity(waiter)
      ) {
        this.removeWaiter(waiter);
        this.grant(waiter);
      } else {
        blockedLocks.push(...waiter.locks);
      }
    }
    for (const waiter of [...this.queue]) {
      this.notifyPosition(waiter);
    }
  }

  private hasCapacity(waiter: Waiter): boolean {
    return waiter.command.params.targets.every((target) => {
      const holds = this.holdsOf(lockOf(target));
      if (holds.some((hold) => hold.leaseId === waiter.command.under)) {
        return true;
      }
      const [weight] = weightOf(target);
      return totalWeight(holds) + weight <= this.limitOf(target);
    });
  }

  private grant({ client, command, callbacks }: Waiter): void {
    const leaseId = command.under ?? randomUUID();
    const ttlMs = command.params.ttlMs ?? TTL_DEFAULT_MS;
    let lease = this.leases.get(leaseId);
    if (lease === undefined) {
      lease = { client, validity: LeaseValidity.start(VALID_FOREVER_MS, ttlMs, this.clock), handles: [] };
      this.leases.set(leaseId, lease);
    }
    const grants = command.params.targets.map((target) => this.addEntry(leaseId, target, command, ttlMs));
    const handle = new LeaseHandle({ leaseId, grants, ttlMs }, command.params.requestId, lease.validity, client);
    lease.handles.push(handle);
    callbacks.onGranted(handle);
  }

  private addEntry(leaseId: string, target: Target, command: AcquireCommand, ttlMs: number): LockGrant {
    const [weight] = weightOf(target);
    const lock = lockOf(target);
    const holds = this.holdsOf(lock);
    const currentHold = holds.find((hold) => hold.leaseId === leaseId);
    if (currentHold !== undefined) {
      currentHold.entries.set(command.params.requestId, weight);
      return { lock, fencingToken: currentHold.holder.fencingToken };
    }
    this.lastToken += 1;
    const fencingToken = this.lastToken;
    const { id: owner, reason } = command.params.owner;
    const holder = { leaseId, owner, reason, fencingToken, since: new Date(), remainingMs: ttlMs };
    const limit = this.limitOf(target);
    const hold = { leaseId, limit, holder, entries: new Map([[command.params.requestId, weight]]) };
    this.holds.set(formatLock(lock), [...holds, hold]);
    return { lock, fencingToken };
  }

  private notifyPosition(waiter: Waiter): void {
    const [lock] = waiter.locks;
    if (lock === undefined) {
      return;
    }
    const before = this.queue.slice(0, this.queue.indexOf(waiter));
    const position = 1 + before.filter(({ locks }) => locks.some((other) => isSameLock(other, lock))).length;
    const queuePosition = {
      position,
      queueLength: this.queueLength(lock),
      holders: this.holders(lock).slice(0, HOLDERS_MAX),
      closure: undefined,
      recovery: undefined,
    };
    const notified = JSON.stringify(queuePosition);
    if (notified !== waiter.notified) {
      waiter.notified = notified;
      waiter.callbacks.onPosition(queuePosition);
    }
  }
}
