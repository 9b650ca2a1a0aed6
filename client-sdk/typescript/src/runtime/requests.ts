// Conversion of acquires to requests of the protocol.

import type { AcquireAllRequest, AcquireRequest } from "../gen/leasehold/v1/lock_service.js";
import type { Lease as WireLease, LockTarget } from "../gen/leasehold/v1/types.js";
import { LockMode } from "../gen/leasehold/v1/types.js";
import type { AcquireParams } from "../messages.js";
import type { Target } from "../target.js";
import { durationFromMs } from "./convert.js";

/** Returns the request for one lock, with the remaining time to wait and the lease to which the lock is added. */
export function acquireRequest(params: AcquireParams, waitMs: number, under: WireLease | undefined): AcquireRequest {
  return { ...commonFields(params, waitMs), target: params.targets.map(lockTarget)[0], under };
}

/** Returns the request for several locks, with the remaining time to wait. */
export function acquireAllRequest(params: AcquireParams, waitMs: number): AcquireAllRequest {
  return { ...commonFields(params, waitMs), targets: params.targets.map(lockTarget) };
}

function commonFields(params: AcquireParams, waitMs: number): Omit<AcquireAllRequest, "targets"> {
  const optionalDuration = (ms: number | undefined) => (ms === undefined ? undefined : durationFromMs(ms));
  return {
    owner: params.owner,
    requestId: params.requestId,
    waitTimeout: durationFromMs(waitMs),
    ttl: optionalDuration(params.ttlMs),
    maxHold: optionalDuration(params.maxHoldMs),
    lockDelay: optionalDuration(params.lockDelayMs),
    disconnectGrace: optionalDuration(params.disconnectGraceMs),
    atLeast: optionalDuration(params.atLeastMs),
  };
}

function lockTarget(target: Target): LockTarget {
  const { name, namespace = "", shared, permits, limit = 0 } = target;
  if (permits === undefined) {
    const mode = shared === true ? LockMode.SHARED : LockMode.EXCLUSIVE;
    return { namespace, name, mode, permits: 0, limit: 0 };
  }
  return { namespace, name, mode: LockMode.SEMAPHORE, permits, limit };
}
