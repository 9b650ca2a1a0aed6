// The hold of a lease on a lock of a fake broker, and its weight.

import type { Holder } from "../messages.js";
import type { Target } from "../target.js";

/** Limit of a lock without permits: an exclusive holder weighs as much as the limit, a shared holder 1. */
export const EXCLUSIVE_WEIGHT = 2 ** 30;

/** The hold of a lease on a lock. */
export interface Hold {
  leaseId: string;
  limit: number;
  holder: Holder;
  /** Weights of the entries, by request id. */
  entries: Map<string, number>;
}

/** Returns the weight that a target requests, and the limit of its lock; a limit of 0 means the limit in use. */
export function weightOf(target: Target): [weight: number, limit: number] {
  if (target.permits !== undefined) {
    return [Math.max(target.permits, 1), target.limit ?? 0];
  }
  return target.shared === true ? [1, EXCLUSIVE_WEIGHT] : [EXCLUSIVE_WEIGHT, EXCLUSIVE_WEIGHT];
}

/** Returns the weight of a hold, which is the largest weight of its entries. */
export function holdWeight(hold: Hold): number {
  return Math.max(...hold.entries.values());
}

/** Returns the total weight of the holds of a lock. */
export function totalWeight(holds: Hold[]): number {
  return holds.reduce((sum, hold) => sum + holdWeight(hold), 0);
}
