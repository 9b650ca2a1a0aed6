// What one acquire has got, the trust in it, and the way to give it back.

import type { Backend } from "./backend.js";
import type { Loss } from "./errors.js";
import type { Granted, Token } from "./order.js";
import { recordHeld } from "./telemetry.js";
import type { Trust } from "./trust.js";

/** The locks of one acquire. */
export class Grip {
  private known: Loss | null = null;
  private hook: ((loss: Loss) => void) | null = null;
  private givenBack = false;
  private readonly since = performance.now();

  readonly leaseId: string;
  /** The locks that the call took or entered, with their fencing tokens. */
  readonly tokens: readonly Token[];
  /** What was granted; a lag of the event loop is compared with it. */
  readonly ttlMs: number;

  constructor(
    granted: Omit<Granted, "trust">,
    private readonly requestId: string,
    private readonly trust: Trust,
    readonly backend: Backend,
  ) {
    this.leaseId = granted.leaseId;
    this.tokens = granted.tokens;
    this.ttlMs = granted.ttlMs;
  }

  /** Whether somebody has given it back. */
  get isGivenBack(): boolean {
    return this.givenBack;
  }

  /** Looks at the clock: why it is over, if it is. */
  loss(): Loss | null {
    if (this.known === null) {
      const reason = this.trust.lostReason();
      if (reason !== null) {
        this.end({ reason, message: "" });
      }
    }
    return this.known;
  }

  /** For how long it can be trusted if nothing is confirmed from now on. */
  remainingMs(): number {
    return this.loss() === null ? this.trust.remainingMs() : 0;
  }

  /** It is over. Only the first reason stays. */
  end(loss: Loss): void {
    if (this.known === null) {
      this.known = loss;
      if (!this.givenBack) {
        this.hook?.(loss);
      }
    }
  }

  /** Calls the hook once, when it is lost; not if it was given back before. */
  onLost(hook: (loss: Loss) => void): void {
    this.hook = hook;
  }

  /** Gives it back, once; null if that was done before. */
  giveBack(): Promise<void> | null {
    if (this.givenBack) {
      return null;
    }
    recordHeld(this.since, this.known !== null);
    this.givenBack = true;
    const locks = this.tokens.map((token) => token.lock);
    return this.backend.release(this, { requestId: this.requestId, locks });
  }
}
