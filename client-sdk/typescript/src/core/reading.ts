// What a broker says, in the words of this package.

import type { ServiceError } from "@grpc/grpc-js";
import { status as Code } from "@grpc/grpc-js";

import type { Loss, LostReason } from "../errors.js";
import type { Any } from "../gen/google/protobuf/any.js";
import type { Duration } from "../gen/google/protobuf/duration.js";
import { ErrorInfo, RetryInfo } from "../gen/google/rpc/error_details.js";
import { Status } from "../gen/google/rpc/status.js";
import type { LeaseEnded, Refused } from "../gen/leasehold/v1/lock_service.js";
import type { Holder as WireHolder, LockTarget } from "../gen/leasehold/v1/types.js";
import { Contention, ErrorReason, LeaseEndReason } from "../gen/leasehold/v1/types.js";
import type { Failure, Holder } from "../order.js";
import type { LockName } from "../target.js";

/** The code of the error of a refusal. What is not named here is `Other`. */
const CODES: Partial<Record<ErrorReason, string>> = {
  [ErrorReason.LOCK_HELD]: "Held",
  [ErrorReason.WAIT_TIMEOUT]: "WaitTimeout",
  [ErrorReason.STILL_QUEUED]: "WaitTimeout",
  [ErrorReason.LIMIT_MISMATCH]: "LimitMismatch",
  [ErrorReason.UPGRADE_DENIED]: "UpgradeDenied",
  [ErrorReason.INVALID_FIELD]: "Invalid",
  [ErrorReason.QUEUE_FULL]: "QueueFull",
  [ErrorReason.QUOTA_EXCEEDED]: "QuotaExceeded",
  [ErrorReason.TOO_MANY_LEASES]: "QuotaExceeded",
  [ErrorReason.STORE_FULL]: "StoreFull",
  [ErrorReason.UNSUPPORTED_BY_STORE]: "UnsupportedByStore",
  [ErrorReason.UNAUTHENTICATED]: "Unauthenticated",
  [ErrorReason.PERMISSION_DENIED]: "PermissionDenied",
  [ErrorReason.STORE_UNAVAILABLE]: "Unavailable",
  [ErrorReason.DRAINING]: "Unavailable",
  [ErrorReason.OVERLOADED]: "Unavailable",
  [ErrorReason.TOO_MANY_ATTEMPTS]: "Unavailable",
  [ErrorReason.STORE_RECOVERING]: "StoreRecovering",
  [ErrorReason.INTERNAL]: "Internal",
};
const LOST: Partial<Record<ErrorReason, LostReason>> = {
  [ErrorReason.LEASE_EXPIRED]: "Expired",
  [ErrorReason.LEASE_REVOKED]: "Revoked",
  [ErrorReason.LEASE_NOT_FOUND]: "StoreLost",
  [ErrorReason.STALE_ATTACH]: "Moved",
};
const ENDED: Partial<Record<LeaseEndReason, LostReason>> = {
  [LeaseEndReason.RELEASED]: "Released",
  [LeaseEndReason.EXPIRED]: "Expired",
  [LeaseEndReason.REVOKED]: "Revoked",
  [LeaseEndReason.STORE_LOST]: "StoreLost",
  [LeaseEndReason.MAX_HOLD]: "MaxHold",
  [LeaseEndReason.MOVED]: "Moved",
  [LeaseEndReason.CREDENTIAL_EXPIRED]: "CredentialExpired",
};
/**
 * A call with one of these may have been done all the same, and is to be repeated. A wait is cancelled by the broker,
 * too, if it has not heard of the client for long.
 */
const OPEN = new Set<number>([Code.UNAVAILABLE, Code.CANCELLED, Code.UNKNOWN, Code.DEADLINE_EXCEEDED]);

/** A span of time in milliseconds; what is unset or negative is none. */
export function timeMs(time: Duration | undefined): number {
  return time === undefined ? 0 : Math.max(0, time.seconds * 1000 + time.nanos / 1e6);
}

/** A span of milliseconds as the broker reads it. */
export function duration(ms: number): Duration {
  const nanos = Math.round((ms % 1000) * 1e6);
  return { seconds: Math.floor(ms / 1000) + Math.floor(nanos / 1e9), nanos: nanos % 1e9 };
}

/** The lock of a target as the broker tells it. */
export function wireLock(target: LockTarget | undefined): LockName {
  const namespace = target?.namespace ?? "";
  return { namespace: namespace === "" ? "default" : namespace, name: target?.name ?? "" };
}

/** Somebody who holds a lock. */
export function holder(one: WireHolder): Holder {
  return {
    leaseId: one.leaseId,
    owner: one.owner?.id ?? "",
    reason: one.owner?.reason ?? "",
    fencingToken: one.fencingToken,
    since: one.sinceTime,
    remainingMs: timeMs(one.remaining),
  };
}

/** A failure that the client itself finds. */
export function failure(code: string, message: string, loss?: Loss): Failure {
  return { code, message, loss, holders: [], queueLength: 0 };
}

/** The failure of what needs a lease that is over. */
export function lostFailure(loss: Loss): Failure {
  return failure("LeaseLost", "", loss);
}

/** A call that was refused. */
export function refusal(said: Refused): Failure {
  const loss = LOST[said.reason] === undefined ? undefined : lossOf(said);
  const code = loss === undefined ? (CODES[said.reason] ?? "Other") : "LeaseLost";
  const isBusy = code === "Held" || code === "WaitTimeout";
  const contention = isBusy ? contentionOf(said.details) : undefined;
  const holders = contention?.holders.map(holder) ?? [];
  const named = holders.map((one) => (one.reason === "" ? one.owner : `${one.owner} (${one.reason})`));
  return {
    code,
    message: named.length === 0 ? said.message : `${said.message}; held by ${named.join(", ")}`,
    holders,
    queueLength: contention?.queueLength ?? 0,
    retryAfterMs: said.retryAfter === undefined ? undefined : timeMs(said.retryAfter),
    loss,
  };
}

/** What the end of a lease means to its holder. */
export function lossOf(said: Refused): Loss {
  return loss(LOST[said.reason] ?? "Other", said.message);
}

/** The broker's word that a lease is over. */
export function endOf(said: LeaseEnded): Loss {
  return loss(ENDED[said.reason] ?? "Other", said.message);
}

/** Whether a call may have been done all the same, and is to be repeated. */
export function isOpen(said: Refused): boolean {
  return OPEN.has(said.code);
}

/** The status of a unary call, as the same call would have been refused on a stream. */
export function statusOf(error: ServiceError): Refused {
  const said: Refused = {
    callId: 0,
    reason: ErrorReason.UNSPECIFIED,
    code: error.code,
    message: error.details,
    details: [],
  };
  for (const packed of error.metadata.get("grpc-status-details-bin")) {
    for (const detail of Status.decode(packed as Buffer).details) {
      readDetail(said, detail);
    }
  }
  return said;
}

function readDetail(said: Refused, detail: Any): void {
  if (isA(detail, "google.rpc.ErrorInfo")) {
    const { reason } = ErrorInfo.decode(detail.value);
    said.reason = reason in ErrorReason ? ErrorReason[reason as keyof typeof ErrorReason] : ErrorReason.UNSPECIFIED;
  } else if (isA(detail, "google.rpc.RetryInfo")) {
    said.retryAfter = RetryInfo.decode(detail.value).retryDelay;
  } else {
    said.details.push(detail);
  }
}

function contentionOf(details: Any[]): Contention | undefined {
  const found = details.find((detail) => isA(detail, "leasehold.v1.Contention"));
  return found && Contention.decode(found.value);
}

function isA(detail: Any, name: string): boolean {
  return detail.typeUrl.endsWith(`/${name}`);
}

function loss(reason: LostReason, message: string): Loss {
  return { reason, message: reason === "Revoked" || reason === "Other" ? message : "" };
}
