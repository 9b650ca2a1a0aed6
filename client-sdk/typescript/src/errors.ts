// Errors of the client, with one class for each reason that a caller may handle differently.

import type { Closure, Holder } from "./messages.js";

/** Reason for which a lease ended although this program did not release it. Values may be added. */
export type LostReason =
  /**
   * No renewal was confirmed in time: the network, the broker or its store was unavailable, or this process was paused.
   */
  | "Expired"
  /** An operator revoked the lease. */
  | "Revoked"
  /** The store has no record of the lease. */
  | "StoreLost"
  /** The lock was held for the whole of its `maxHoldMs`. */
  | "MaxHold"
  /** The lease was released, by this client or with a copy of the lease. */
  | "Released"
  /** Another client attached the lease with a copy of it. */
  | "Moved"
  /** The client's credential expired. */
  | "CredentialExpired"
  /** The client was shut down. */
  | "Closed"
  /** A reason that this version of the client does not define. */
  | "Other";

/** Reason for which a lease ended, with the message of the broker. */
export interface Loss {
  readonly reason: LostReason;
  /** Message of the broker, for people; often empty. */
  readonly message: string;
}

const LOST_TEXTS: Record<LostReason, string> = {
  Expired: "no renewal was confirmed in time",
  Revoked: "revoked",
  StoreLost: "the store lost the lease",
  MaxHold: "the lease has reached its maxHoldMs",
  Released: "released",
  Moved: "moved to another client",
  CredentialExpired: "the credential expired",
  Closed: "the client is shut down",
  Other: "lost",
};

/** Formats a loss for people. */
export function formatLoss(loss: Loss): string {
  return loss.message === "" ? LOST_TEXTS[loss.reason] : `${LOST_TEXTS[loss.reason]}: ${loss.message}`;
}

/** Optional details of an error. */
export interface ErrorDetails {
  holders?: readonly Holder[];
  queueLength?: number;
  closure?: Closure | undefined;
  retryAfterMs?: number | undefined;
  cause?: unknown;
}

/** Base class of all errors that this package throws. Branch on the class or on `code`, never on the message. */
export abstract class LeaseholdError extends Error {
  /** Name of the class without `Error`. Stable across versions. */
  abstract readonly code: string;
  /** Some holders of the lock, if the request was rejected because of them; at most 5. */
  readonly holders: readonly Holder[];
  /** Number of waiters for the lock, if the request was rejected because of contention; otherwise 0. */
  readonly queueLength: number;
  /** Closure of the lock, if the request was rejected because of contention and the lock is closed. */
  readonly closure: Closure | undefined;
  /** Time in milliseconds after which a retry may succeed, if the broker sent one. */
  readonly retryAfterMs: number | undefined;

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.holders = details.holders ?? [];
    this.queueLength = details.queueLength ?? 0;
    this.closure = details.closure;
    this.retryAfterMs = details.retryAfterMs;
  }
}

/** Base class of the errors of an acquire. */
export abstract class AcquireError extends LeaseholdError {}

/** Another caller holds the lock or the lock is closed, and the call did not wait. */
export class HeldError extends AcquireError {
  readonly code = "Held";
}

/**
 * The wait timed out. The call has left the queue, unless another attempt of it is still queued or has been granted the
 * lock (STILL_QUEUED).
 */
export class WaitTimeoutError extends AcquireError {
  readonly code = "WaitTimeout";
}

/**
 * The lock was lost. The protected work may overlap with that of another holder, unless a fencing token prevents it.
 * From an acquire: the lease given as `under` has ended.
 */
export class LeaseLostError extends AcquireError {
  readonly code = "LeaseLost";
  /** Reason for the loss, with the message of the broker. */
  readonly loss: Loss;

  constructor(loss: Loss, details: ErrorDetails = {}) {
    super(`the lock was lost: ${formatLoss(loss)}`, details);
    this.loss = loss;
  }

  /** Reason for the loss, without the message. */
  get reason(): LostReason {
    return this.loss.reason;
  }
}

/** Another limit or mode is in use on this lock. */
export class LimitMismatchError extends AcquireError {
  readonly code = "LimitMismatch";
}

/** The lease holds the lock as shared and requested it as exclusive. */
export class UpgradeDeniedError extends AcquireError {
  readonly code = "UpgradeDenied";
}

/** A field of the call is invalid. */
export class InvalidError extends AcquireError {
  readonly code = "Invalid";
}

/** The queue of the lock is full. */
export class QueueFullError extends AcquireError {
  readonly code = "QueueFull";
}

/** A quota of the broker is exhausted. */
export class QuotaExceededError extends AcquireError {
  readonly code = "QuotaExceeded";
}

/** The broker's store has no memory for another holder or waiter. */
export class StoreFullError extends AcquireError {
  readonly code = "StoreFull";
}

/** The broker's store does not support the request. */
export class UnsupportedByStoreError extends AcquireError {
  readonly code = "UnsupportedByStore";
}

/** The credential is missing or not accepted. */
export class UnauthenticatedError extends AcquireError {
  readonly code = "Unauthenticated";
}

/** The credential does not authorize the request. */
export class PermissionDeniedError extends AcquireError {
  readonly code = "PermissionDenied";
}

/**
 * No broker responded in time, or its store did not. The client repeated the call until then. If an attempt acquired
 * the lock nevertheless, its lease expires.
 */
export class UnavailableError extends AcquireError {
  readonly code = "Unavailable";
}

/** The store has lost data, and grants nothing until every lease that may have been lost has expired. */
export class StoreRecoveringError extends AcquireError {
  readonly code = "StoreRecovering";
}

/** An internal error of the broker or of this client. */
export class InternalError extends AcquireError {
  readonly code = "Internal";
}

/** The client is shut down. */
export class ClosedError extends AcquireError {
  readonly code = "Closed";

  constructor(message = "the client is shut down") {
    super(message);
  }
}

/** Any other rejection, perhaps of a broker that is newer than this client. */
export class OtherError extends AcquireError {
  readonly code = "Other";
}

/** Code that requires a lock runs without it (`assertHeld`). */
export class NotHeldError extends LeaseholdError {
  readonly code = "NotHeld";
}

/** Base class of the errors of a release. The lease has ended in any case; see also `LeaseLostError`. */
export abstract class ReleaseError extends LeaseholdError {}

/** No broker confirmed the release before the lease expired or the client closed. */
export class UnconfirmedError extends ReleaseError {
  readonly code = "Unconfirmed";

  constructor(message = "no broker has confirmed the release; the lease expires if it was not released") {
    super(message);
  }
}

/** A broker rejected the release. */
export class RefusedError extends ReleaseError {
  readonly code = "Refused";
}

/** Base class of the errors of creating or connecting a client. */
export abstract class ConnectError extends LeaseholdError {}

/** No endpoint was given. */
export class NoEndpointError extends ConnectError {
  readonly code = "NoEndpoint";

  constructor() {
    super("no endpoint: give at least one, as in http://127.0.0.1:7070");
  }
}

/** An endpoint is not a usable http or https URL. */
export class InvalidEndpointError extends ConnectError {
  readonly code = "InvalidEndpoint";

  constructor(
    readonly endpoint: string,
    problem: string,
  ) {
    super(`endpoint ${JSON.stringify(endpoint)}: ${problem}; expected a URL as in http://127.0.0.1:7070`);
  }
}

/** The credential cannot be read, or contains characters other than printable ASCII. */
export class InvalidCredentialError extends ConnectError {
  readonly code = "InvalidCredential";

  constructor(problem = "not printable ASCII") {
    super(`invalid credential: ${problem}`);
  }
}

/** A bearer token would be sent unencrypted to another machine. */
export class InsecureTokenError extends ConnectError {
  readonly code = "InsecureToken";

  constructor(readonly endpoint: string) {
    const problem = "the bearer token would be sent unencrypted to another machine";
    const remedy = "use https, or set allowInsecureToken on a trusted network";
    super(`endpoint ${JSON.stringify(endpoint)}: ${problem}; ${remedy}`);
  }
}

/** The owner is empty or longer than 256 bytes. */
export class InvalidOwnerError extends ConnectError {
  readonly code = "InvalidOwner";

  constructor() {
    super("the owner's name must have 1 to 256 bytes");
  }
}

/** The brokers respond, but reject the credential, or calls without one. */
export class CredentialRefusedError extends ConnectError {
  readonly code = "CredentialRefused";
}

/** No broker responded. */
export class UnreachableError extends ConnectError {
  readonly code = "Unreachable";
}
