// Errors out of what the client's thread says.

import * as errors from "./errors.js";
import type { Failure } from "./order.js";

type Made = new (message: string, details: errors.Details) => errors.LeaseholdError;

const CLASSES: Record<string, Made> = {
  Held: errors.HeldError,
  WaitTimeout: errors.WaitTimeoutError,
  LimitMismatch: errors.LimitMismatchError,
  UpgradeDenied: errors.UpgradeDeniedError,
  Invalid: errors.InvalidError,
  QueueFull: errors.QueueFullError,
  QuotaExceeded: errors.QuotaExceededError,
  StoreFull: errors.StoreFullError,
  UnsupportedByStore: errors.UnsupportedByStoreError,
  Unauthenticated: errors.UnauthenticatedError,
  PermissionDenied: errors.PermissionDeniedError,
  Unavailable: errors.UnavailableError,
  StoreRecovering: errors.StoreRecoveringError,
  Internal: errors.InternalError,
  Refused: errors.RefusedError,
  CredentialRefused: errors.CredentialRefusedError,
  Unreachable: errors.UnreachableError,
};

/** The error that is meant. */
export function errorOf(failure: Failure): errors.LeaseholdError {
  const { code, message, holders, queueLength, retryAfterMs, loss } = failure;
  if (loss !== undefined) {
    return new errors.LeaseLostError(loss, { retryAfterMs });
  }
  if (code === "Closed") {
    return new errors.ClosedError();
  }
  if (code === "Unconfirmed") {
    return new errors.UnconfirmedError();
  }
  const made = CLASSES[code] ?? errors.OtherError;
  return new made(message, { holders, queueLength, retryAfterMs });
}
