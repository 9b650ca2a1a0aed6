// Acquires as a broker reads them.

import type { AcquireAllRequest, AcquireRequest } from "../gen/leasehold/v1/lock_service.js";
import type { Lease as WireLease, LockTarget } from "../gen/leasehold/v1/types.js";
import { LockMode } from "../gen/leasehold/v1/types.js";
import type { Call } from "../order.js";
import type { Target } from "../target.js";
import { duration } from "./reading.js";

/** The call for one lock, with so much time left to wait, under this lease. */
export function acquireRequest(call: Call, waitMs: number, under: WireLease | undefined): AcquireRequest {
  return { ...settings(call, waitMs), target: call.targets.map(wireTarget)[0], under };
}

/** The call for several. */
export function acquireAllRequest(call: Call, waitMs: number): AcquireAllRequest {
  return { ...settings(call, waitMs), targets: call.targets.map(wireTarget) };
}

function settings(call: Call, waitMs: number): Omit<AcquireAllRequest, "targets"> {
  const time = (ms: number | undefined) => (ms === undefined ? undefined : duration(ms));
  return {
    owner: call.owner,
    requestId: call.requestId,
    waitTimeout: duration(waitMs),
    ttl: time(call.ttlMs),
    maxHold: time(call.maxHoldMs),
    lockDelay: time(call.lockDelayMs),
    disconnectGrace: time(call.disconnectGraceMs),
  };
}

function wireTarget(target: Target): LockTarget {
  const { name, namespace = "", shared, permits, limit = 0 } = target;
  if (permits === undefined) {
    const mode = shared === true ? LockMode.SHARED : LockMode.EXCLUSIVE;
    return { namespace, name, mode, permits: 0, limit: 0 };
  }
  return { namespace, name, mode: LockMode.SEMAPHORE, permits, limit };
}
