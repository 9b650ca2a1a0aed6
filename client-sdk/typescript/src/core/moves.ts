// From one broker to the next: after a break, when asked to, when nothing answers. A stream that still works is left
// only once another one is open.

import { debuglog } from "node:util";

import { OPEN_LIMIT_MS } from "./endpoint.js";
import type { Keeper } from "./keeper.js";
import type { Listener } from "./link.js";
import { Link } from "./link.js";
import { failure } from "./reading.js";

const log = debuglog("leasehold");

/** Clients of a broker that dies don't all come to the next one at the same moment. */
const JITTER_MS = 50;
/** A stream that lived for so long was a success. */
const SETTLED_MS = 1_000;
const PAUSE_MIN_MS = 100;
const PAUSE_MAX_MS = 1_000;

/** Hears why there is no stream, and whether that is because of the credential; null: there is one. */
type Told = (why: string | null, isDenied: boolean) => void;

/** Between half of a time and all of it. */
export function jittered(time: number): number {
  return time * (0.5 + Math.random() / 2);
}

/** On the way to another broker. */
export class Moves {
  /** The endpoint of the present stream, or the one that was tried last. */
  private at = -1;
  private due: number | null = null;
  private opening: Link | null = null;
  /** Endpoints that were tried one after the other in vain. */
  private failures = 0;
  /** Endpoints that did not accept the credential, one after the other. */
  private denials = 0;
  private openedAt: number;
  private why = "not connected yet";
  /** Who waits for the first stream, and why there was none since. */
  private first: { told: Told; whys: string[] }[] = [];
  private isOver = false;
  private readonly listener: Listener;

  constructor(private readonly keeper: Keeper) {
    this.openedAt = keeper.clock.now();
    const { guarded } = keeper.core;
    this.listener = {
      opened: guarded((link: Link) => {
        this.opened(link);
      }),
      failed: guarded((link: Link, why: string, isDenied: boolean) => {
        this.failed(link, why, isDenied);
      }),
      heard: guarded(keeper.hear.bind(keeper)),
      broken: guarded(keeper.broken.bind(keeper)),
    };
  }

  /** Whether nothing is planned. */
  get isSettled(): boolean {
    return this.due === null;
  }

  /** Why there is no stream. */
  get whyNot(): string {
    return `no broker can be reached: ${this.why}`;
  }

  /** Tells when there is a stream, or why there is none once every endpoint was tried. */
  tellFirst(told: Told): void {
    if (this.keeper.link !== null) {
      told(null, false);
    } else {
      this.first.push({ told, whys: [] });
    }
  }

  /** Goes to another broker after a while. */
  leave(delay: number): void {
    const now = this.keeper.clock.now();
    if (this.isSettled) {
      this.begin(now);
    }
    this.due = Math.min(this.due ?? Infinity, now + delay);
    this.openIfDue(now);
  }

  /** The stream is gone. */
  broken(): void {
    this.why = "the stream broke";
    this.begin(this.keeper.clock.now());
    this.failures += 1;
    this.leave(Math.max(jittered(JITTER_MS), this.pause()));
  }

  /** Looks at the time. */
  tick(now: number): void {
    const opening = this.opening;
    if (opening !== null && now >= opening.begunAt + OPEN_LIMIT_MS) {
      opening.cut();
      this.failed(opening, `${opening.endpoint.name}: no answer within ${String(OPEN_LIMIT_MS / 1000)} s`, false);
    }
    this.openIfDue(now);
  }

  /** Goes nowhere any more. */
  stop(): void {
    this.isOver = true;
    this.due = null;
    this.opening?.cut();
    this.opening = null;
    this.tell("the client is shut down");
  }

  private begin(now: number): void {
    // What failed before the present stream counts no more, if that was a success.
    if (now > this.openedAt + SETTLED_MS) {
      this.failures = 0;
    }
  }

  private openIfDue(now: number): void {
    if (this.isOver || this.opening !== null || this.due === null || now < this.due) {
      return;
    }
    this.at += 1;
    try {
      this.opening = new Link(this.keeper.core.brokers, this.at, this.keeper.clock, this.listener);
    } catch (error) {
      this.noLink(error instanceof Error ? error.message : String(error), false);
    }
  }

  private opened(link: Link): void {
    if (link !== this.opening) {
      link.cut();
      return;
    }
    this.opening = null;
    this.due = null;
    this.denials = 0;
    this.openedAt = this.keeper.clock.now();
    this.keeper.switch(link);
    this.tell(null);
  }

  private failed(link: Link, why: string, isDenied: boolean): void {
    if (link === this.opening) {
      this.noLink(why, isDenied);
    }
  }

  private noLink(why: string, isDenied: boolean): void {
    this.opening = null;
    log(isDenied ? "a broker does not accept the credential: %s" : "a broker does not answer: %s", why);
    this.denials = isDenied ? this.denials + 1 : 0;
    this.failures += 1;
    this.why = why;
    const count = this.keeper.core.brokers.endpoints.length;
    if (this.denials >= count && this.keeper.link === null) {
      // Calls are told so instead of being sent on and on.
      this.keeper.waits.close(failure("Unauthenticated", this.whyNot));
    }
    this.due = this.keeper.clock.now() + this.pause();
    const first = this.first;
    this.first = [];
    for (const one of first) {
      one.whys.push(why);
      if (one.whys.length >= count) {
        one.told(one.whys.join("; "), this.denials >= count);
      } else {
        this.first.push(one);
      }
    }
  }

  private tell(why: string | null): void {
    const first = this.first;
    this.first = [];
    for (const { told } of first) {
      told(why, false);
    }
  }

  private pause(): number {
    // Every endpoint is tried at once the first time, then all more and more slowly.
    const rounds = Math.floor(this.failures / this.keeper.core.brokers.endpoints.length);
    return rounds === 0 ? 0 : jittered(Math.min(PAUSE_MIN_MS * 2 ** Math.min(rounds - 1, 16), PAUSE_MAX_MS));
  }
}
