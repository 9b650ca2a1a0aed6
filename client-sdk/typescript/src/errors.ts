// Everything that can go wrong, one class for each reason that a caller may treat differently.

import type { Holder } from "./order.js";

/** Why a lease is over although nobody released it here. New ones may come. */
export type LostReason =
  /** No renewal was confirmed in time: the network, the broker or its store could not be reached, or it stood still. */
  | "Expired"
  /** An operator took it away. */
  | "Revoked"
  /** The store does not know it any more. */
  | "StoreLost"
  /** It has been held for all of its `maxHoldMs`. */
  | "MaxHold"
  /** It was given back, here or with a copy of the lease. */
  | "Released"
  /** Somebody took it over with a copy of the lease. */
  | "Moved"
  /** The client's credential ran out. */
  | "CredentialExpired"
  /** The client was shut down. */
  | "Closed"
  /** A reason that this client does not know. */
  | "Other";

/** Why a lease is over, with what the broker said. */
export interface Loss {
  readonly reason: LostReason;
  /** For people; often empty. */
  readonly message: string;
}

const LOST: Record<LostReason, string> = {
  Expired: "no renewal was confirmed in time",
  Revoked: "revoked",
  StoreLost: "the store lost it",
  MaxHold: "held for all of its maxHoldMs",
  Released: "given back",
  Moved: "moved to another client",
  CredentialExpired: "the credential ran out",
  Closed: "the client is shut down",
  Other: "lost",
};

/** The loss, for people. */
export function shownLoss(loss: Loss): string {
  return loss.message === "" ? LOST[loss.reason] : `${LOST[loss.reason]}: ${loss.message}`;
}

/** What an error may say besides its message. */
export interface Details {
  holders?: readonly Holder[];
  queueLength?: number;
  retryAfterMs?: number | undefined;
  cause?: unknown;
}

/** Whatever this package throws. Branch on the class or on `code`, never on the message. */
export abstract class LeaseholdError extends Error {
  /** The class, as a word that does not change. */
  abstract readonly code: string;
  /** Some who hold the lock, if they were in the way; at most 5. */
  readonly holders: readonly Holder[];
  /** How many wait for the lock, if that was in the way. */
  readonly queueLength: number;
  /** When to try again, in milliseconds, if that is worth while. */
  readonly retryAfterMs: number | undefined;

  constructor(message: string, details: Details = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.holders = details.holders ?? [];
    this.queueLength = details.queueLength ?? 0;
    this.retryAfterMs = details.retryAfterMs;
  }
}

/** Why a lock was not taken. */
export abstract class AcquireError extends LeaseholdError {}

/** Somebody else holds the lock, and the call did not wait. */
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
 * The lock was lost: what it guarded may overlap with the work of somebody else, unless a fencing token keeps them
 * apart. From an acquire: the lease given as `under` is over.
 */
export class LeaseLostError extends AcquireError {
  readonly code = "LeaseLost";
  /** Why, with what the broker said. */
  readonly loss: Loss;

  constructor(loss: Loss, details: Details = {}) {
    super(`the lock was lost: ${shownLoss(loss)}`, details);
    this.loss = loss;
  }

  /** Why. */
  get reason(): LostReason {
    return this.loss.reason;
  }
}

/** Another limit or mode is in use on this lock. */
export class LimitMismatchError extends AcquireError {
  readonly code = "LimitMismatch";
}

/** Shared to exclusive under one lease. */
export class UpgradeDeniedError extends AcquireError {
  readonly code = "UpgradeDenied";
}

/** A field of the call is not legal. */
export class InvalidError extends AcquireError {
  readonly code = "Invalid";
}

/** The lock's line is full. */
export class QueueFullError extends AcquireError {
  readonly code = "QueueFull";
}

/** A quota of the broker is used up. */
export class QuotaExceededError extends AcquireError {
  readonly code = "QuotaExceeded";
}

/** The broker's store has no memory for another holder or waiter. */
export class StoreFullError extends AcquireError {
  readonly code = "StoreFull";
}

/** The broker's store cannot do that. */
export class UnsupportedByStoreError extends AcquireError {
  readonly code = "UnsupportedByStore";
}

/** The credential is missing or not accepted. */
export class UnauthenticatedError extends AcquireError {
  readonly code = "Unauthenticated";
}

/** The credential does not allow that. */
export class PermissionDeniedError extends AcquireError {
  readonly code = "PermissionDenied";
}

/**
 * No broker, or no store behind it, could answer in time. The call was repeated until then, and was given up: if it
 * did take the lock, that runs out by itself.
 */
export class UnavailableError extends AcquireError {
  readonly code = "Unavailable";
}

/** The store has lost data and grants nothing until every lease that it may have forgotten is over. */
export class StoreRecoveringError extends AcquireError {
  readonly code = "StoreRecovering";
}

/** A fault of the broker, or of this client. */
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

/** Anything else that a broker says, perhaps a newer one than this client. */
export class OtherError extends AcquireError {
  readonly code = "Other";
}

/** Code that needs a lock runs without it (`assertHeld`). */
export class NotHeldError extends LeaseholdError {
  readonly code = "NotHeld";
}

/** Why a release did not go as hoped. The lease is gone in any case; see also `LeaseLostError`. */
export abstract class ReleaseError extends LeaseholdError {}

/** No broker has confirmed the release while the lease could have lived; it has run out by now. */
export class UnconfirmedError extends ReleaseError {
  readonly code = "Unconfirmed";

  constructor(message = "no broker has confirmed the release; the lock has run out by itself") {
    super(message);
  }
}

/** The broker would not release it. */
export class RefusedError extends ReleaseError {
  readonly code = "Refused";
}

/** Why a client could not be made. */
export abstract class ConnectError extends LeaseholdError {}

/** No endpoint was given. */
export class NoEndpointError extends ConnectError {
  readonly code = "NoEndpoint";

  constructor() {
    super("no endpoint: give at least one, as in http://127.0.0.1:7070");
  }
}

/** An endpoint is none. */
export class InvalidEndpointError extends ConnectError {
  readonly code = "InvalidEndpoint";

  constructor(
    readonly endpoint: string,
    why: string,
  ) {
    super(`endpoint ${JSON.stringify(endpoint)}: ${why}; expected a URL as in http://127.0.0.1:7070`);
  }
}

/** The credential cannot be read, or has characters that no header may have. */
export class InvalidCredentialError extends ConnectError {
  readonly code = "InvalidCredential";

  constructor(why = "it is not printable ASCII") {
    super(`the credential: ${why}`);
  }
}

/** A bearer token would be sent unencrypted to another machine. */
export class InsecureTokenError extends ConnectError {
  readonly code = "InsecureToken";

  constructor(readonly endpoint: string) {
    const why = "the bearer token would cross the network unencrypted";
    const next = "use https, or allowInsecureToken where the network itself is trusted";
    super(`endpoint ${JSON.stringify(endpoint)}: ${why}; ${next}`);
  }
}

/** The owner is empty or longer than 256 bytes. */
export class InvalidOwnerError extends ConnectError {
  readonly code = "InvalidOwner";

  constructor() {
    super("the owner's name must have 1 to 256 bytes");
  }
}

/** The brokers answer, and accept no call with this credential, or without one. */
export class CredentialRefusedError extends ConnectError {
  readonly code = "CredentialRefused";
}

/** No broker answers. */
export class UnreachableError extends ConnectError {
  readonly code = "Unreachable";
}
