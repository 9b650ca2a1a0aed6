// The TypeScript client of Leasehold, a lock broker.
//
// What can be relied on: `isValid` is false, and stays false, before anybody else can get the lock, also after this
// process or its machine stood still. That is not enough to protect data: between the check and the write the process
// may stand still. Send `fencingToken` with every write, and refuse smaller ones there.

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
export { assertHeld } from "./held.js";
export type { Lease } from "./lease.js";
export type { AcquireOptions } from "./options.js";
export type { Holder, LockState, Place } from "./order.js";
export type { ClientOptions, TlsOptions } from "./settings.js";
export type { LockLike, Target } from "./target.js";
