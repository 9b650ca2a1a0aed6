// Conversion of protocol messages of the broker to types of this package.

import type { ServiceError } from "@grpc/grpc-js";
import { status as Code } from "@grpc/grpc-js";

import type { Loss, LostReason } from "../errors.js";
import type { Any } from "../gen/google/protobuf/any.js";
import type { Duration } from "../gen/google/protobuf/duration.js";
import { ErrorInfo, RetryInfo } from "../gen/google/rpc/error_details.js";
import { Status } from "../gen/google/rpc/status.js";
import type { PermitUsage as WirePermitUsage } from "../gen/leasehold/v1/inspection_service.js";
import type { LeaseEnded, Refused } from "../gen/leasehold/v1/lock_service.js";
import type { Closure as WireClosure, Holder as WireHolder, LockTarget } from "../gen/leasehold/v1/types.js";
import {
  ClosureCause as WireClosureCause,
  Contention,
  ErrorReason,
  LeaseEndReason,
  StoreRecovery as WireStoreRecovery,
} from "../gen/leasehold/v1/types.js";
import type { Closure, ClosureCause, Failure, Holder, PermitUsage, StoreRecovery } from "../messages.js";
import { createPermitUsage } from "../messages.js";
import type { LockName } from "../target.js";

/** Error codes of rejections. Other reasons have the code `Other`. */
const CODE_BY_REASON: Partial<Record<ErrorReason, string>> = {
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
const LOST_REASON_BY_ERROR: Partial<Record<ErrorReason, LostReason>> = {
  [ErrorReason.LEASE_EXPIRED]: "Expired",
  [ErrorReason.LEASE_REVOKED]: "Revoked",
  [ErrorReason.LEASE_NOT_FOUND]: "StoreLost",
  [ErrorReason.STALE_ATTACH]: "Moved",
};
const LOST_REASON_BY_END: Partial<Record<LeaseEndReason, LostReason>> = {
  [LeaseEndReason.RELEASED]: "Released",
  [LeaseEndReason.EXPIRED]: "Expired",
  [LeaseEndReason.REVOKED]: "Revoked",
  [LeaseEndReason.STORE_LOST]: "StoreLost",
  [LeaseEndReason.MAX_HOLD]: "MaxHold",
  [LeaseEndReason.MOVED]: "Moved",
  [LeaseEndReason.CREDENTIAL_EXPIRED]: "CredentialExpired",
};
const CLOSURE_CAUSES: Partial<Record<WireClosureCause, ClosureCause>> = {
  [WireClosureCause.LOCK_DELAY]: "LockDelay",
  [WireClosureCause.AT_LEAST]: "AtLeast",
  [WireClosureCause.OPERATOR]: "Operator",
};
/**
 * Status codes after which a call is repeated, because its outcome is unknown. CANCELLED is one of them: the broker
 * cancels a wait if it has not received a message of the client for some time.
 */
const RETRYABLE_CODES = new Set<number>([Code.UNAVAILABLE, Code.CANCELLED, Code.UNKNOWN, Code.DEADLINE_EXCEEDED]);

/** Converts a duration to milliseconds. An unset or negative duration is 0. */
export function durationToMs(duration: Duration | undefined): number {
  return duration === undefined ? 0 : Math.max(0, duration.seconds * 1000 + duration.nanos / 1e6);
}

/** Converts milliseconds to a duration of the protocol. */
export function durationFromMs(ms: number): Duration {
  const nanos = Math.round((ms % 1000) * 1e6);
  return { seconds: Math.floor(ms / 1000) + Math.floor(nanos / 1e9), nanos: nanos % 1e9 };
}

/** Converts a target of the protocol to the name of its lock. */
export function lockNameFromTarget(target: LockTarget | undefined): LockName {
  const namespace = target?.namespace ?? "";
  return { namespace: namespace === "" ? "default" : namespace, name: target?.name ?? "" };
}

/** Converts a holder of the protocol. */
export function convertHolder(holder: WireHolder): Holder {
  return {
    leaseId: holder.leaseId,
    owner: holder.owner?.id ?? "",
    reason: holder.owner?.reason ?? "",
    fencingToken: holder.fencingToken,
    since: holder.sinceTime,
    remainingMs: durationToMs(holder.remaining),
  };
}

/** Converts a closure of the protocol. */
export function convertClosure(closure: WireClosure): Closure {
  return {
    cause: CLOSURE_CAUSES[closure.cause] ?? "Other",
    owner: closure.owner?.id ?? "",
    reason: closure.owner?.reason ?? "",
    until: closure.untilTime,
    remainingMs: durationToMs(closure.remaining),
  };
}

/** Converts a recovery of the store of the protocol. */
export function convertRecovery({ cause, sinceTime, remaining }: WireStoreRecovery): StoreRecovery {
  return { cause, since: sinceTime, remainingMs: durationToMs(remaining) };
}

/** Returns the recovery of the store for which a call was rejected. */
export function recoveryFromRefused(refused: Refused): StoreRecovery | undefined {
  const detail = refused.details.find(({ typeUrl }) => typeUrl.endsWith("/leasehold.v1.StoreRecovery"));
  return detail && convertRecovery(WireStoreRecovery.decode(detail.value));
}

/** Converts the permit usage of the protocol. */
export function convertPermitUsage({ limit, used, isLimitSet }: WirePermitUsage): PermitUsage {
  return createPermitUsage(limit, used, isLimitSet);
}

/** Creates a failure that was detected by the client. */
export function createFailure(code: string, message: string, loss?: Loss): Failure {
  return { code, message, loss, holders: [], queueLength: 0 };
}

/** Creates the failure of a call whose lease has ended. */
export function leaseLostFailure(loss: Loss): Failure {
  return createFailure("LeaseLost", "", loss);
}

/** Converts a rejection to a failure. */
export function failureFromRefused(refused: Refused): Failure {
  const loss = LOST_REASON_BY_ERROR[refused.reason] === undefined ? undefined : lossFromRefused(refused);
  const code = loss === undefined ? (CODE_BY_REASON[refused.reason] ?? "Other") : "LeaseLost";
  const isContention = code === "Held" || code === "WaitTimeout";
  const contention = isContention ? decodeContention(refused.details) : undefined;
  const holders = contention?.holders.map(convertHolder) ?? [];
  const closure = contention?.closure && convertClosure(contention.closure);
  return {
    code,
    message: refused.message + formatOwners(holders, closure),
    holders,
    queueLength: contention?.queueLength ?? 0,
    closure,
    retryAfterMs: refused.retryAfter === undefined ? undefined : durationToMs(refused.retryAfter),
    loss,
  };
}

/** Converts the status of a unary call to a failure. */
export function failureFromStatus(error: ServiceError): Failure {
  const refused = refusedFromStatus(error);
  // Brokers send a reason with each rejection: a status without one is from the connection.
  const isBroken = isRetryable(refused) && refused.reason === ErrorReason.UNSPECIFIED;
  return isBroken ? createFailure("Unavailable", refused.message) : failureFromRefused(refused);
}

function formatOwners(holders: Holder[], closure: Closure | undefined): string {
  const heldBy = holders.length === 0 ? "" : `; held by ${holders.map(formatOwner).join(", ")}`;
  const closedBy = closure === undefined || closure.owner === "" ? "" : `; closed by ${formatOwner(closure)}`;
  return heldBy + closedBy;
}

function formatOwner({ owner, reason }: Holder | Closure): string {
  return reason === "" ? owner : `${owner} (${reason})`;
}

/** Converts a rejection of a call on a lease to the loss of the lease. */
export function lossFromRefused(refused: Refused): Loss {
  return createLoss(LOST_REASON_BY_ERROR[refused.reason] ?? "Other", refused.message);
}

/** Converts the broker's report of the end of a lease. */
export function lossFromEnded(ended: LeaseEnded): Loss {
  return createLoss(LOST_REASON_BY_END[ended.reason] ?? "Other", ended.message);
}

/** Returns true if the outcome of the call is unknown, so that the call is repeated. */
export function isRetryable(refused: Refused): boolean {
  return RETRYABLE_CODES.has(refused.code);
}

/** Converts the status of a unary call to a rejection on a stream. */
export function refusedFromStatus(error: ServiceError): Refused {
  const refused: Refused = {
    callId: 0,
    reason: ErrorReason.UNSPECIFIED,
    code: error.code,
    message: error.details,
    details: [],
  };
  for (const encodedStatus of error.metadata.get("grpc-status-details-bin")) {
    for (const detail of Status.decode(encodedStatus as Buffer).details) {
      addDetail(refused, detail);
    }
  }
  return refused;
}

function addDetail(refused: Refused, detail: Any): void {
  if (hasType(detail, "google.rpc.ErrorInfo")) {
    const { reason } = ErrorInfo.decode(detail.value);
    refused.reason = reason in ErrorReason ? ErrorReason[reason as keyof typeof ErrorReason] : ErrorReason.UNSPECIFIED;
  } else if (hasType(detail, "google.rpc.RetryInfo")) {
    refused.retryAfter = RetryInfo.decode(detail.value).retryDelay;
  } else {
    refused.details.push(detail);
  }
}

function decodeContention(details: Any[]): Contention | undefined {
  const contention = details.find((detail) => hasType(detail, "leasehold.v1.Contention"));
  return contention && Contention.decode(contention.value);
}

function hasType(detail: Any, name: string): boolean {
  return detail.typeUrl.endsWith(`/${name}`);
}

function createLoss(reason: LostReason, message: string): Loss {
  return { reason, message: reason === "Revoked" || reason === "Other" ? message : "" };
}
