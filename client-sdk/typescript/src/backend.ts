// A broker as clients see it: over the network by a thread of its own, or a fake one.

import type { Clock } from "./clock.js";
import type { LeaseholdError } from "./errors.js";
import type { Grip } from "./grip.js";
import type { Ask, Entry, LockState, Place } from "./order.js";
import type { LockName } from "./target.js";

/** The caller of an acquire. */
export interface Caller {
  /** Where it stands. */
  place(place: Place): void;
  /** It has got the locks. */
  granted(grip: Grip): void;
  /** It has got nothing. */
  failed(error: LeaseholdError): void;
}

/** Whoever keeps leases. */
export interface Backend {
  readonly clock: Clock;
  /** Tells of something that should not be, for people. */
  readonly warn: (message: string) => void;
  /** Resolves when a broker answers. */
  connect(): Promise<void>;
  /** Takes locks, and keeps their lease. */
  acquire(ask: Ask, caller: Caller): void;
  /** The caller is gone: nothing is told to it any more, and what it got is given back. */
  cancel(requestId: string): void;
  /** Gives back what one acquire has got. Rejects if that did not go as hoped. */
  release(grip: Grip, entry: Entry): Promise<void>;
  /** Looks at a lock. */
  look(lock: LockName): Promise<LockState | null>;
  /** Gives up every wait, releases every lease, and ends. */
  close(): Promise<void>;
}
