// Acquires on the program's thread: repeated waits, cancellation, telemetry.

import { randomUUID } from "node:crypto";

import type { Backend } from "./backend.js";
import { HeldError, LeaseLostError, WaitTimeoutError } from "./errors.js";
import type { LeaseHandle } from "./lease-handle.js";
import { Lease, leaseHandles } from "./lease.js";
import type { AcquireCommand, AcquireParams } from "./messages.js";
import type { AcquireOptions } from "./options.js";
import { acquireParamsOf, WAIT_MAX_MS, waitMsOf } from "./options.js";
import type { LockLike } from "./target.js";
import { formatLock, lockOf } from "./target.js";
import { AcquireTelemetry } from "./telemetry.js";

/** A request for one lock, or for several under one lease. */
export class AcquireCall {
  private readonly params: Omit<AcquireParams, "requestId">;
  private readonly under: LeaseHandle | undefined;
  private readonly backend: Backend;

  constructor(
    backend: Backend,
    owner: string,
    locks: readonly LockLike[],
    private readonly options: AcquireOptions,
  ) {
    this.params = acquireParamsOf(owner, locks, options);
    this.under = options.under && leaseHandles.get(options.under);
    // Only the client that renews a lease can add locks to it.
    this.backend = this.under?.backend ?? backend;
  }

  /** Acquires the locks, waiting in their queues. */
  async acquire(): Promise<Lease> {
    const waitMs = waitMsOf(this.options);
    const { clock } = this.backend;
    const deadline = clock.now() + waitMs;
    let remainingMs = waitMs;
    for (;;) {
      try {
        return await this.request(Math.min(remainingMs, WAIT_MAX_MS));
      } catch (error) {
        remainingMs = deadline - clock.now();
        if (!(error instanceof WaitTimeoutError) || remainingMs <= 0 || waitMs <= WAIT_MAX_MS) {
          throw error;
        }
      }
    }
  }

  /** Acquires the locks if they are free. Returns null if another caller holds one of them, or one is closed. */
  async tryAcquire(): Promise<Lease | null> {
    try {
      return await this.request(0);
    } catch (error) {
      if (error instanceof HeldError) {
        return null;
      }
      throw error;
    }
  }

  private request(waitMs: number): Promise<Lease> {
    const { backend, under } = this;
    const { signal, onQueue, onLost } = this.options;
    signal?.throwIfAborted();
    const loss = under?.loss();
    if (loss !== undefined && loss !== null) {
      throw new LeaseLostError(loss);
    }
    const telemetry = new AcquireTelemetry(
      this.params.targets.map((target) => formatLock(lockOf(target))),
      waitMs,
    );
    const requestId = randomUUID();
    const params = { ...this.params, requestId, traceparent: telemetry.traceparent };
    const command: AcquireCommand = { params, waitMs, under: under?.leaseId };
    return new Promise((resolve, reject) => {
      const abandon = (reason: Error) => {
        signal?.removeEventListener("abort", abort);
        backend.cancel(requestId);
        telemetry.recordCancelled();
        reject(reason);
      };
      const abort = () => {
        abandon(signal?.reason as Error);
      };
      signal?.addEventListener("abort", abort);
      backend.acquire(command, {
        onPosition: (position) => {
          telemetry.recordQueued(position);
          try {
            onQueue?.(position);
          } catch (error) {
            // The acquire fails with the error of the callback.
            abandon(error as Error);
          }
        },
        onGranted: (handle) => {
          signal?.removeEventListener("abort", abort);
          telemetry.recordGranted(handle.leaseId);
          resolve(new Lease(handle, onLost));
        },
        onFailed: (error) => {
          signal?.removeEventListener("abort", abort);
          telemetry.recordFailed(error);
          // The program's thread may have recorded another reason for the end of the lease.
          const recordedLoss = error instanceof LeaseLostError ? under?.loss() : null;
          reject(recordedLoss === undefined || recordedLoss === null ? error : new LeaseLostError(recordedLoss));
        },
      });
    });
  }
}
