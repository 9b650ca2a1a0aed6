// All streams of a client, and how they end.

import type { ServiceError } from "@grpc/grpc-js";
import { status as Code } from "@grpc/grpc-js";

import type { Clock } from "../clock.js";
import type { GetLockResponse } from "../gen/leasehold/v1/inspection_service.js";
import type { Answer, Ask, Brokers, Entry, Word } from "../order.js";
import type { LockName } from "../target.js";
import { Keeper } from "./keeper.js";
import { failure, holder, lostFailure, refusal, statusOf } from "./reading.js";

/** Leases and waits of one stream, as the broker allows. */
const STREAM_LEASES_MAX = 1_000;
/** How often the time is looked at. No timer runs through a suspend. */
const TICK_MS = 50;

/** Answers an order. */
export type Reply = (answer: Answer) => void;

/** Does what it is told, and tells what became of it. */
export class Core {
  private readonly keepers: Keeper[] = [];
  private ticking: NodeJS.Timeout | null = null;
  private isClosed = false;
  /** Keepers that are still ending, and who waits for that. */
  private ending = 0;
  private closers: (() => void)[] = [];

  constructor(
    readonly brokers: Brokers,
    readonly clock: Clock,
    readonly tell: (word: Word) => void,
  ) {}

  /** Has a job done whose fault must not end the leases of others, and the time looked at while that is needed. */
  readonly guarded =
    <T extends unknown[]>(job: (...args: T) => void): ((...args: T) => void) =>
    (...args) => {
      try {
        job(...args);
      } catch (error) {
        const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
        this.tell({ kind: "fault", text });
      }
      this.tickIfNeeded();
    };

  /** Answers when there is a broker, or with why there is none. */
  connect(reply: Reply): void {
    if (this.isClosed) {
      reply(failed("Closed", ""));
      return;
    }
    this.keeper(0).moves.tellFirst((why, isDenied) => {
      if (why === null) {
        reply({ kind: "done" });
      } else if (isDenied) {
        reply(failed("CredentialRefused", `the credential is missing or not accepted: ${why}`));
      } else {
        reply(failed("Unreachable", `no broker answers: ${why}`));
      }
    });
  }

  /** Takes locks, and keeps their lease. */
  acquire(ask: Ask, id: number): void {
    const reply = (answer: Answer) => {
      this.tell({ kind: "answer", id, answer });
    };
    if (this.isClosed) {
      reply(failed("Closed", ""));
      return;
    }
    const { under } = ask;
    const keeper = under === undefined ? this.keeper(1) : this.keeperOf(under);
    if (keeper === undefined) {
      reply({ kind: "failed", failure: lostFailure({ reason: "Released", message: "" }) });
    } else {
      keeper.waits.ask(ask, id);
    }
  }

  /** The caller is gone. What it got is given back. */
  cancel(requestId: string): void {
    for (const keeper of this.keepers) {
      keeper.waits.cancel(requestId);
    }
  }

  /** Gives back what one acquire has got. */
  release(leaseId: string, entry: Entry, reply: Reply): void {
    const keeper = this.keepers.find(({ leases }) => leases.all.has(leaseId) || leases.lost.has(leaseId));
    if (keeper === undefined) {
      // It was lost before; whoever asks knows why.
      reply({ kind: "failed", failure: lostFailure({ reason: "Closed", message: "" }) });
      return;
    }
    keeper.releases.giveBack(leaseId, entry, (why) => {
      reply(why === null ? { kind: "done" } : { kind: "failed", failure: why });
    });
  }

  /** Looks at a lock. */
  look(lock: LockName, reply: Reply): void {
    if (this.isClosed) {
      reply(failed("Closed", ""));
      return;
    }
    const keeper = this.keeper(0);
    keeper.moves.tellFirst(() => {
      if (keeper.link === null) {
        reply(this.isClosed ? failed("Closed", "") : failed("Unavailable", keeper.moves.whyNot));
      } else {
        keeper.link.look(lock, (error, found) => {
          reply(looked(error, found));
        });
      }
    });
  }

  /** Gives up every wait, releases every lease, and ends. */
  close(limitMs: number, done: () => void): void {
    this.closers.push(done);
    if (!this.isClosed) {
      // A call that comes now must not make another keeper, which nobody would close.
      this.isClosed = true;
      this.ending = this.keepers.length;
      for (const keeper of this.keepers) {
        keeper.close(this.clock.now() + limitMs, () => {
          this.ending -= 1;
          this.closedIfEnded();
        });
      }
    }
    this.closedIfEnded();
  }

  private closedIfEnded(): void {
    if (this.ending === 0) {
      const { closers } = this;
      this.closers = [];
      for (const done of closers) {
        done();
      }
    }
  }

  /** One with room for so many leases or waits more. */
  private keeper(more: number): Keeper {
    const found = this.keepers.find((keeper) => keeper.load + more <= STREAM_LEASES_MAX);
    if (found !== undefined) {
      return found;
    }
    const keeper = new Keeper(this);
    this.keepers.push(keeper);
    return keeper;
  }

  private keeperOf(leaseId: string): Keeper | undefined {
    return this.keepers.find((keeper) => keeper.leases.all.has(leaseId));
  }

  private tickIfNeeded(): void {
    const isIdle = this.keepers.every((keeper) => keeper.isIdle);
    if (isIdle && this.ticking !== null) {
      clearInterval(this.ticking);
      this.ticking = null;
    } else if (!isIdle) {
      this.ticking ??= setInterval(this.guarded(this.tick.bind(this)), TICK_MS);
    }
  }

  private tick(): void {
    const now = this.clock.now();
    for (const keeper of this.keepers) {
      keeper.tick(now);
    }
  }
}

function looked(error: ServiceError | null, found: GetLockResponse | undefined): Answer {
  if (error?.code === Code.NOT_FOUND) {
    return { kind: "looked", state: null };
  }
  if (error !== null) {
    return { kind: "failed", failure: refusal(statusOf(error)) };
  }
  const lock = found?.lock;
  const holders = lock?.holders.map(holder) ?? [];
  const { queueLength = 0, lastFencingToken = 0 } = lock ?? {};
  return { kind: "looked", state: { holders, queueLength, lastFencingToken } };
}

function failed(code: string, message: string): Answer {
  return { kind: "failed", failure: failure(code, message) };
}
