// The TypeScript client of Leasehold, a lock broker.
//
// Guarantee: `isValid` is false, and stays false, before another caller can acquire the lock, also after this process
// or its machine was paused. This does not suffice to protect data, because the process may be paused between the
// check and the write. Send `fencingToken` with every write, and reject smaller tokens at the resource.

export { Client } from "./client.js";
export type { ElectionOptions, TryOptions, Work } from "./client.js";
export type { Election, GiveUp, Observer } from "./election.js";
export {
  AcquireError,
  ClosedError,
  ConnectError,
  HeldError,
  InsecureTokenError,
  InternalError,
  CredentialRefusedError,
  InvalidCredentialError,
  InvalidEndpointError,
  InvalidError,
  InvalidOwnerError,
  LeaseholdError,
  LeaseLostError,
  LimitMismatchError,
  NoEndpointError,
  NotHeldError,
  OtherError,
  PermissionDeniedError,
  QueueFullError,
  QuotaExceededError,
  RefusedError,
  ReleaseError,
  StoreFullError,
  StoreRecoveringError,
  UnauthenticatedError,
  UnavailableError,
  UnconfirmedError,
  UnreachableError,
  UnsupportedByStoreError,
  UpgradeDeniedError,
  WaitTimeoutError,
} from "./errors.js";
export type { Loss, LostReason } from "./errors.js";
export { assertHeld } from "./held-leases.js";
export type { Lease } from "./lease.js";
export type { AcquireOptions } from "./options.js";
export type {
  Closure,
  ClosureCause,
  Holder,
  LockState,
  PermitUsage,
  QueuePosition,
  StoreRecovery,
} from "./messages.js";
export type { ClientOptions, TlsOptions } from "./settings.js";
export type { LockLike, Target } from "./target.js";
