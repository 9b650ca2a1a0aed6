// The lock to acquire: its name and mode.

import { InvalidError } from "./errors.js";

/** A lock with the default namespace filled in. */
export interface LockName {
  readonly namespace: string;
  readonly name: string;
}

/**
 * A lock to acquire, and its mode: `{ name: "gpu", namespace: "render", permits: 2, limit: 8 }`. A plain string is the
 * lock of this name in the default namespace, in exclusive mode.
 */
export interface Target {
  /** Name of the lock, 1-512 bytes without control characters. */
  readonly name: string;
  /** Namespace of the lock, 1-63 characters of `[a-z0-9-]`. Default: `default`. */
  readonly namespace?: string | undefined;
  /** True for the shared mode: any number of shared holders, and no holder of another mode. */
  readonly shared?: boolean | undefined;
  /** Number of permits of a semaphore, out of the `limit` permits of the lock. */
  readonly permits?: number | undefined;
  /**
   * Number of all permits of the lock, 1-1000. All callers use the same limit, unless `Client.setLimit` has set another
   * one. Unset: the limit in use.
   */
  readonly limit?: number | undefined;
}

/** The name of a lock, or a target. */
export type LockLike = string | Target;

const INT32_MAX = 2 ** 31 - 1;

/** Returns the lock of a target, with the default namespace filled in. */
export function lockOf(lock: LockLike): LockName {
  const { name, namespace } = targetOf(lock);
  return { namespace: namespace === undefined || namespace === "" ? "default" : namespace, name };
}

/** Returns true if both names refer to the same lock. */
export function isSameLock(first: LockName, second: LockName): boolean {
  return first.name === second.name && first.namespace === second.namespace;
}

/** Formats a lock for people. */
export function formatLock(lock: LockName): string {
  return `${lock.namespace}/${lock.name}`;
}

/** Returns the target of a lock name or target. Throws TypeError for a value of another type. */
export function targetOf(lock: LockLike): Target {
  const target = typeof lock === "string" ? { name: lock } : lock;
  const { name, namespace = "" } = (target as Partial<Target> | null | undefined) ?? {};
  if (typeof name !== "string" || typeof namespace !== "string") {
    throw new TypeError("expected the name of a lock, or a target with a name");
  }
  return target;
}

/** Checks a target. Throws InvalidError if its fields are invalid or contradict each other. */
export function checkedTarget(target: Target): Target {
  if (target.shared === true && target.permits !== undefined) {
    throw new InvalidError("shared and permits are both set; set one of them");
  }
  if (target.limit !== undefined && target.permits === undefined) {
    throw new InvalidError("limit is set without permits; set both");
  }
  return { ...target, permits: checkedCount("permits", target.permits), limit: checkedCount("limit", target.limit) };
}

/** Checks a limit to set. Throws InvalidError if the limit is no positive whole number. */
export function checkedLimit(limit: number): number {
  return checkedInteger("limit", limit, 1);
}

function checkedCount(name: string, value: number | undefined): number | undefined {
  return value === undefined ? undefined : checkedInteger(name, value, 0);
}

function checkedInteger(name: string, value: number, min: number): number {
  if (!Number.isInteger(value) || value < min) {
    throw new InvalidError(`${name}: ${String(value)} is not a whole number of at least ${String(min)}`);
  }
  // The broker rejects a value that exceeds the integer type as too large.
  return Math.min(value, INT32_MAX);
}
