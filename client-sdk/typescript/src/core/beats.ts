// When heartbeats are due, and when nobody answers them.

import type { Keeper } from "./keeper.js";

/** Sends the heartbeat that the leases and waits of a stream need. */
export function beatIfDue(keeper: Keeper, now: number): void {
  const { link } = keeper;
  if (link === null) {
    return;
  }
  const last = link.lastBeat ?? -Infinity;
  let intervalMs = Infinity;
  // One soon for all that have just come here, or were granted late: their broker is busy.
  let isSoon = false;
  for (const owned of keeper.leases.all.values()) {
    if (owned.isHere) {
      intervalMs = Math.min(intervalMs, owned.intervalMs);
      isSoon ||= owned.cameAt !== null && owned.cameAt > last;
      isSoon ||= owned.grantedAt > last && owned.isOld(now);
    }
  }
  for (const wait of keeper.waits.all.values()) {
    intervalMs = Math.min(intervalMs, wait.intervalMs);
  }
  if (intervalMs < Infinity && now >= last + (isSoon ? intervalMs / 4 : intervalMs)) {
    link.beat();
  }
}

/**
 * A broker that answers no heartbeat for a quarter of a ttl may be gone, though its connection seems to live. (One
 * that is asked to keep waits only, and answers none, is noticed by the pings of the connection.)
 */
export function watchSilence(keeper: Keeper, now: number): void {
  const since = keeper.link?.silentSince ?? null;
  if (since === null || !keeper.moves.isSettled) {
    return;
  }
  for (const owned of keeper.leases.all.values()) {
    if (owned.isHere && now > since + owned.ttlMs / 4) {
      keeper.moves.leave(0);
      return;
    }
  }
}
