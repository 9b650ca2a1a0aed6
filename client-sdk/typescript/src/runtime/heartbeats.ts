// Heartbeats of a session: when they are due, and when their confirmations are overdue.

import type { Session } from "./session.js";

/** Sends a heartbeat if a lease or pending acquire of the stream needs one. */
export function heartbeatIfDue(session: Session, now: number): void {
  const { connection } = session;
  if (connection === null) {
    return;
  }
  const lastHeartbeatSentAt = connection.lastHeartbeatSentAt ?? -Infinity;
  let intervalMs = Infinity;
  // Leases that were just attached or were granted late share one early heartbeat, because their broker is busy.
  let isEarly = false;
  for (const heldLease of session.leases.all.values()) {
    if (heldLease.isAttached) {
      intervalMs = Math.min(intervalMs, heldLease.intervalMs);
      isEarly ||= heldLease.attachedAt !== null && heldLease.attachedAt > lastHeartbeatSentAt;
      isEarly ||= heldLease.grantedAt > lastHeartbeatSentAt && heldLease.isHeartbeatDue(now);
    }
  }
  for (const pendingAcquire of session.pendingAcquires.all.values()) {
    intervalMs = Math.min(intervalMs, pendingAcquire.intervalMs);
  }
  if (intervalMs < Infinity && now >= lastHeartbeatSentAt + (isEarly ? intervalMs / 4 : intervalMs)) {
    connection.sendHeartbeat();
  }
}

/**
 * Starts a failover if the broker has confirmed no heartbeat for a quarter of a TTL. Its connection may seem to work
 * nevertheless. Without leases on the stream, only the pings of the connection detect a silent broker.
 */
export function checkSilence(session: Session, now: number): void {
  const unansweredSince = session.connection?.unansweredSince ?? null;
  if (unansweredSince === null || !session.failover.isIdle) {
    return;
  }
  for (const heldLease of session.leases.all.values()) {
    if (heldLease.isAttached && now > unansweredSince + heldLease.ttlMs / 4) {
      session.failover.startFailover(0);
      return;
    }
  }
}
