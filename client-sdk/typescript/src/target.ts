// What to take: a lock's name, and how it is shared.

import { InvalidError } from "./errors.js";

/** A lock with the default namespace filled in. */
export interface LockName {
  readonly namespace: string;
  readonly name: string;
}

/**
 * One lock to take, and how: `{ name: "gpu", namespace: "render", permits: 2, limit: 8 }`. A plain string is the lock
 * of this name in the default namespace, for one holder alone.
 */
export interface Target {
  /** 1-512 bytes without control characters. */
  readonly name: string;
  /** 1-63 characters of `[a-z0-9-]` instead of `default`. */
  readonly namespace?: string | undefined;
  /** Together with any number of other holders that share it, but with none that does not. */
  readonly shared?: boolean | undefined;
  /** As a semaphore: so many of the `limit` that the lock has in all. */
  readonly permits?: number | undefined;
  /** 1-1000; all callers name the same. Unset with `permits`: the one in use. */
  readonly limit?: number | undefined;
}

/** A lock's name, or how it is to be taken. */
export type LockLike = string | Target;

const MOST = 2 ** 31 - 1;

/** The lock that is meant. */
export function lockOf(what: LockLike): LockName {
  const { name, namespace } = targetOf(what);
  return { namespace: namespace === undefined || namespace === "" ? "default" : namespace, name };
}

/** Whether both are the same lock. */
export function isSameLock(one: LockName, other: LockName): boolean {
  return one.name === other.name && one.namespace === other.namespace;
}

/** The lock, for people. */
export function shownLock(lock: LockName): string {
  return `${lock.namespace}/${lock.name}`;
}

/** The target that is meant. Throws TypeError for what is none, InvalidError for one that contradicts itself. */
export function targetOf(what: LockLike): Target {
  const target = typeof what === "string" ? { name: what } : what;
  const { name, namespace = "" } = (target as Partial<Target> | null | undefined) ?? {};
  if (typeof name !== "string" || typeof namespace !== "string") {
    throw new TypeError("a lock's name or a target with a name is expected");
  }
  return target;
}

/** The target with what the options of its call say of all targets. */
export function checkedTarget(target: Target): Target {
  if (target.shared === true && target.permits !== undefined) {
    throw new InvalidError("a lock is either shared or has permits");
  }
  if (target.limit !== undefined && target.permits === undefined) {
    throw new InvalidError("a limit needs permits");
  }
  return { ...target, permits: count("permits", target.permits), limit: count("limit", target.limit) };
}

function count(name: string, value: number | undefined): number | undefined {
  if (value === undefined) {
    return undefined;
  }
  if (!Number.isInteger(value) || value < 0) {
    throw new InvalidError(`${name} must be a whole number`);
  }
  // What does not fit is refused by the broker, as too much.
  return Math.min(value, MOST);
}
