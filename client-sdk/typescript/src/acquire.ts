// One call that takes locks, from the program's side.

import { randomUUID } from "node:crypto";

import type { Backend } from "./backend.js";
import { HeldError, LeaseLostError, WaitTimeoutError } from "./errors.js";
import type { Grip } from "./grip.js";
import { grips, Lease } from "./lease.js";
import type { AcquireOptions } from "./options.js";
import { callOf, waitOf, WAIT_MAX_MS } from "./options.js";
import type { Ask, Call } from "./order.js";
import type { LockLike } from "./target.js";
import { lockOf, shownLock } from "./target.js";
import { Acquiring } from "./telemetry.js";

/** Locks about to be taken. */
export class Acquire {
  private readonly call: Omit<Call, "requestId">;
  private readonly under: Grip | undefined;
  private readonly backend: Backend;

  constructor(
    backend: Backend,
    owner: string,
    locks: readonly LockLike[],
    private readonly options: AcquireOptions,
  ) {
    this.call = callOf(owner, locks, options);
    this.under = options.under && grips.get(options.under);
    // Only the client that keeps a lease can add to it.
    this.backend = this.under?.backend ?? backend;
  }

  /** Takes the locks, waiting in line. */
  async wait(): Promise<Lease> {
    const waitMs = waitOf(this.options);
    const { clock } = this.backend;
    const until = clock.now() + waitMs;
    let leftMs = waitMs;
    for (;;) {
      try {
        return await this.ask(Math.min(leftMs, WAIT_MAX_MS));
      } catch (error) {
        leftMs = until - clock.now();
        if (!(error instanceof WaitTimeoutError) || leftMs <= 0 || waitMs <= WAIT_MAX_MS) {
          throw error;
        }
      }
    }
  }

  /** Takes the locks if they are free; null if somebody has one. */
  async try(): Promise<Lease | null> {
    try {
      return await this.ask(0);
    } catch (error) {
      if (error instanceof HeldError) {
        return null;
      }
      throw error;
    }
  }

  private ask(waitMs: number): Promise<Lease> {
    const { backend, under } = this;
    const { signal, onQueue, onLost } = this.options;
    signal?.throwIfAborted();
    const lost = under?.loss();
    if (lost !== undefined && lost !== null) {
      throw new LeaseLostError(lost);
    }
    const telemetry = new Acquiring(
      this.call.targets.map((target) => shownLock(lockOf(target))),
      waitMs,
    );
    const requestId = randomUUID();
    const call = { ...this.call, requestId, traceparent: telemetry.traceparent };
    const ask: Ask = { call, waitMs, under: under?.leaseId };
    return new Promise((resolve, reject) => {
      const giveUp = (why: Error) => {
        signal?.removeEventListener("abort", abort);
        backend.cancel(requestId);
        telemetry.cancelled();
        reject(why);
      };
      const abort = () => {
        giveUp(signal?.reason as Error);
      };
      signal?.addEventListener("abort", abort);
      backend.acquire(ask, {
        place: (place) => {
          telemetry.queued(place);
          try {
            onQueue?.(place);
          } catch (error) {
            // As if it had been called by the code that waits.
            giveUp(error as Error);
          }
        },
        granted: (grip) => {
          signal?.removeEventListener("abort", abort);
          telemetry.granted(grip.leaseId);
          resolve(new Lease(grip, onLost));
        },
        failed: (error) => {
          signal?.removeEventListener("abort", abort);
          telemetry.failed(error);
          // The program may know better than its thread why that lease is over.
          const why = error instanceof LeaseLostError ? under?.loss() : null;
          reject(why === undefined || why === null ? error : new LeaseLostError(why));
        },
      });
    });
  }
}
