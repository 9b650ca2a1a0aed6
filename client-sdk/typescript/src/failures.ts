// Conversion of failures from the worker thread to error classes.

import * as errors from "./errors.js";
import type { Failure } from "./messages.js";

type ErrorClass = new (message: string, details: errors.ErrorDetails) => errors.LeaseholdError;

const CLASSES: Record<string, ErrorClass> = {
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

/** Returns the error for a failure. */
export function errorOfFailure(failure: Failure): errors.LeaseholdError {
  const { code, message, holders, queueLength, closure, retryAfterMs, loss } = failure;
  if (loss !== undefined) {
    return new errors.LeaseLostError(loss, { retryAfterMs });
  }
  if (code === "Closed") {
    return new errors.ClosedError();
  }
  if (code === "Unconfirmed") {
    return new errors.UnconfirmedError();
  }
  const errorClass = CLASSES[code] ?? errors.OtherError;
  return new errorClass(message, { holders, queueLength, closure, retryAfterMs });
}
