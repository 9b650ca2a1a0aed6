// The client's thread as the program sees it: orders go there, words come back, and it keeps no process alive that
// waits for nothing.

import { Worker } from "node:worker_threads";

import type { Backend, Caller } from "./backend.js";
import type { Clock, SharedClock } from "./clock.js";
import { clockOf, shareClock } from "./clock.js";
import type { LeaseholdError } from "./errors.js";
import { ClosedError, InternalError } from "./errors.js";
import { exitHook } from "./exit.js";
import { errorOf } from "./failures.js";
import { Grip } from "./grip.js";
import { LagWatch } from "./lag.js";
import type { Answer, Ask, Brokers, Entry, Granted, LockState, Order, Settings, Word } from "./order.js";
import type { LockName } from "./target.js";
import { Trust } from "./trust.js";

/** How long an end waits for brokers. */
const SHUTDOWN_LIMIT_MS = 2_000;
/** How much longer for the thread that keeps that limit. */
const THREAD_LIMIT_MS = 500;

interface Pending {
  answered(answer: Answer): void;
  failed(error: LeaseholdError): void;
  place?: Caller["place"];
}

/** Begins with the first order. */
export class ThreadBackend implements Backend {
  readonly clock: Clock;
  private readonly sharedClock: SharedClock;
  private worker: Worker | null = null;
  /** Why it takes no more orders. */
  private over: LeaseholdError | null = null;
  private closing: Promise<void> | null = null;
  private lastId = 0;
  /** What has no answer yet. */
  private readonly pending = new Map<number, Pending>();
  private readonly requests = new Map<string, number>();
  private readonly grips = new Map<string, Set<Grip>>();
  private readonly lag: LagWatch;
  private readonly closeNow = (): (() => void) => this.closeAtExit();

  constructor(
    private readonly brokers: Brokers,
    private readonly releaseAtExit: boolean,
    readonly warn: (message: string) => void,
  ) {
    this.sharedClock = shareClock();
    this.clock = clockOf(this.sharedClock);
    this.lag = new LagWatch(warn);
  }

  connect(): Promise<void> {
    return this.asked(
      (id) => ({ kind: "connect", id }),
      () => undefined,
    );
  }

  acquire(ask: Ask, caller: Caller): void {
    const { requestId } = ask.call;
    const done = <T extends unknown[]>(tell: (...args: T) => void) => {
      return (...args: T) => {
        this.requests.delete(requestId);
        tell(...args);
      };
    };
    const failed = done((error: LeaseholdError) => {
      caller.failed(error);
    });
    const answered = done((answer: Answer) => {
      if (answer.kind === "granted") {
        caller.granted(this.grip(answer.granted, requestId));
      } else {
        caller.failed(failureOf(answer));
      }
    });
    const place = caller.place.bind(caller);
    const id = this.order((id) => ({ kind: "acquire", id, ask }), { answered, failed, place });
    if (id !== null) {
      this.requests.set(requestId, id);
    }
  }

  cancel(requestId: string): void {
    const id = this.requests.get(requestId);
    if (id === undefined) {
      return;
    }
    this.requests.delete(requestId);
    // The thread has answered by now, or does so at once. What it has granted meanwhile is given back.
    const answered = (answer: Answer) => {
      if (answer.kind === "granted") {
        this.grip(answer.granted, requestId)
          .giveBack()
          ?.catch(() => undefined);
      }
    };
    this.pending.set(id, { answered, failed: () => undefined });
    this.post({ kind: "cancel", requestId });
  }

  release(grip: Grip, entry: Entry): Promise<void> {
    this.forget(grip);
    return this.asked(
      (id) => ({ kind: "release", id, leaseId: grip.leaseId, entry }),
      () => undefined,
    );
  }

  look(lock: LockName): Promise<LockState | null> {
    return this.asked(
      (id) => ({ kind: "look", id, lock }),
      (answer) => (answer.kind === "looked" ? answer.state : null),
    );
  }

  close(): Promise<void> {
    this.closing ??= this.closeOnce();
    return this.closing;
  }

  private async closeOnce(): Promise<void> {
    const { worker } = this;
    if (worker === null || this.over !== null) {
      this.over ??= new ClosedError();
      return;
    }
    const ended = this.asked(
      (id) => ({ kind: "close", id, limitMs: SHUTDOWN_LIMIT_MS, done: new SharedArrayBuffer(4) }),
      () => undefined,
    );
    this.over = new ClosedError();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise((resolve) => (timer = setTimeout(resolve, SHUTDOWN_LIMIT_MS + THREAD_LIMIT_MS)));
    await Promise.race([ended, late]);
    clearTimeout(timer);
    await worker.terminate();
  }

  /** Begins to give everything back without the event loop; waits for the end of that when called. */
  private closeAtExit(): () => void {
    const done = new SharedArrayBuffer(4);
    this.post({ kind: "close", id: 0, limitMs: SHUTDOWN_LIMIT_MS, done });
    return () => {
      Atomics.wait(new Int32Array(done), 0, 0, SHUTDOWN_LIMIT_MS + THREAD_LIMIT_MS);
    };
  }

  private asked<T>(order: (id: number) => Order, read: (answer: Answer) => T): Promise<T> {
    return new Promise((resolve, reject) => {
      const answered = (answer: Answer) => {
        if (answer.kind === "failed") {
          reject(failureOf(answer));
        } else {
          resolve(read(answer));
        }
      };
      this.order(order, { answered, failed: reject });
    });
  }

  private order(order: (id: number) => Order, pending: Pending): number | null {
    if (this.over !== null) {
      pending.failed(this.over);
      return null;
    }
    this.lastId += 1;
    const id = this.lastId;
    const worker = this.start();
    this.pending.set(id, pending);
    // Whoever waits for an answer is to get it.
    worker.ref();
    this.post(order(id));
    return id;
  }

  private post(order: Order): void {
    this.worker?.postMessage(order);
  }

  private start(): Worker {
    if (this.worker !== null) {
      return this.worker;
    }
    const workerData: Settings = { brokers: this.brokers, clock: this.sharedClock };
    // The program's own loaders and flags are of no use there.
    const worker = new Worker(new URL("./core/worker.js", import.meta.url), {
      name: "leasehold",
      workerData,
      execArgv: [],
    });
    worker.on("message", (word: Word) => {
      this.hear(word);
    });
    worker.on("error", (error) => {
      this.ended(new InternalError(`the client's thread has failed: ${error.message}`));
    });
    worker.on("exit", () => {
      this.ended(new InternalError("the client's thread has ended"));
    });
    this.worker = worker;
    if (this.releaseAtExit) {
      exitHook.add(this.closeNow);
    }
    return worker;
  }

  private hear(word: Word): void {
    switch (word.kind) {
      case "answer":
        this.answered(word.id, word.answer);
        break;
      case "place":
        this.pending.get(word.id)?.place?.(word.place);
        break;
      case "lost":
        for (const grip of this.grips.get(word.leaseId) ?? []) {
          grip.end(word.loss);
          this.forget(grip);
        }
        break;
      case "fault":
        this.warn(`a fault of the client: ${word.text}`);
    }
  }

  private answered(id: number, answer: Answer): void {
    const pending = this.pending.get(id);
    this.pending.delete(id);
    this.rest();
    pending?.answered(answer);
  }

  /** Lets the process end if nobody waits for anything. */
  private rest(): void {
    if (this.pending.size === 0) {
      this.worker?.unref();
    }
  }

  private grip(granted: Granted, requestId: string): Grip {
    const grip = new Grip(granted, requestId, new Trust(granted.trust, this.clock), this);
    const own = this.grips.get(grip.leaseId) ?? new Set();
    this.grips.set(grip.leaseId, own.add(grip));
    this.lag.watch(grip);
    return grip;
  }

  private forget(grip: Grip): void {
    const own = this.grips.get(grip.leaseId);
    own?.delete(grip);
    if (own?.size === 0) {
      this.grips.delete(grip.leaseId);
    }
    this.lag.forget(grip);
  }

  /** There is no thread any more: nothing is renewed, and nobody answers. */
  private ended(why: LeaseholdError): void {
    exitHook.delete(this.closeNow);
    this.over ??= why;
    const { over } = this;
    const reason = over instanceof ClosedError ? "Closed" : "Other";
    for (const own of [...this.grips.values()]) {
      for (const grip of [...own]) {
        this.forget(grip);
        grip.end({ reason, message: reason === "Closed" ? "" : over.message });
      }
    }
    const pending = [...this.pending.values()];
    this.pending.clear();
    for (const one of pending) {
      one.failed(over);
    }
  }
}

function failureOf(answer: Answer): LeaseholdError {
  return answer.kind === "failed"
    ? errorOf(answer.failure)
    : new InternalError(`an answer of another kind: ${answer.kind}`);
}
