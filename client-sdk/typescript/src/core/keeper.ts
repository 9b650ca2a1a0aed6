// Keeps the leases and waits of one stream alive, on one broker after the other.

import { debuglog } from "node:util";

import type { Clock } from "../clock.js";
import type { HoldResponse, Refused, Released } from "../gen/leasehold/v1/lock_service.js";
import { beatIfDue, watchSilence } from "./beats.js";
import type { Core } from "./core.js";
import { Leases } from "./leases.js";
import type { About, Link } from "./link.js";
import { Moves } from "./moves.js";
import { endOf, failure, timeMs } from "./reading.js";
import { Releases } from "./releases.js";
import { Waits } from "./waits.js";

const log = debuglog("leasehold");

/** One stream, and all that is on it or on its way to the next one. */
export class Keeper {
  link: Link | null = null;
  readonly clock: Clock;
  readonly moves: Moves;
  readonly waits: Waits;
  readonly leases: Leases;
  readonly releases: Releases;
  /** What was refused for now, and when to send it again. */
  private again: { at: number; about: About }[] = [];
  /** Told at the end; null: it is not being closed. */
  private closed: (() => void) | null = null;
  private closeBy = 0;
  private closeLinkBy = 0;
  private isLinkClosed = false;

  constructor(readonly core: Core) {
    this.clock = core.clock;
    this.moves = new Moves(this);
    this.waits = new Waits(this);
    this.leases = new Leases(this);
    this.releases = new Releases(this);
    this.moves.leave(0);
  }

  /** How many leases and waits it has. */
  get load(): number {
    return this.waits.all.size + this.leases.all.size;
  }

  /** Whether the time is of no interest. */
  get isIdle(): boolean {
    return this.load === 0 && this.moves.isSettled && this.closed === null;
  }

  /** Has something sent again after a while. */
  putOff(pause: number, about: About): void {
    this.again.push({ at: this.clock.now() + pause, about });
  }

  /** A message of the broker. */
  hear(link: Link, response: HoldResponse): void {
    const { message } = response;
    if (link !== this.link) {
      return;
    }
    link.heard();
    switch (message?.$case) {
      case "ack":
        this.leases.acknowledged(message.value);
        break;
      case "granted":
        this.waits.granted(message.value);
        break;
      case "released":
        this.released(link, message.value);
        break;
      case "queued":
        this.waits.queued(message.value);
        break;
      case "refused":
        this.refused(link, message.value);
        break;
      case "attached":
        this.leases.attached(message.value);
        break;
      case "ended":
        this.leases.lose(message.value.leaseId, endOf(message.value));
        break;
      case "reconnect":
        this.moves.leave(timeMs(message.value.delay));
        break;
      case "done":
        if (link.answered(message.value.callId)?.about.kind === "credential") {
          link.shown(true);
        }
        break;
      case "releaseRequested":
        log("the broker asks for lease %s: %s", message.value.leaseId, message.value.message);
        break;
      case undefined:
      // It is of a newer broker.
    }
  }

  private released(link: Link, released: Released): void {
    const about = link.answered(released.callId)?.about;
    if (about?.kind !== "release") {
      return;
    }
    if (about.part === undefined) {
      this.releases.released(about.key);
    } else {
      this.releases.partReleased(about.key, about.part, released.holdCount);
    }
  }

  private refused(link: Link, said: Refused): void {
    const about = link.answered(said.callId)?.about;
    if (about?.kind === "acquire") {
      this.waits.refused(about.key, said);
    } else if (about?.kind === "attach") {
      this.leases.attachRefused(about.key, said);
    } else if (about?.kind === "release" && about.part === undefined) {
      this.releases.refused(about.key, said);
    } else if (about?.kind === "release" && about.part !== undefined) {
      this.releases.partRefused(about.key, about.part, said);
    } else if (about?.kind === "credential") {
      // The broker may hear of its key, or of it, in a moment.
      log("a broker does not accept another credential: %s", said.message);
      link.shown(false);
    }
  }

  /** Looks at the time. */
  tick(now: number): void {
    if (this.closed !== null) {
      this.closeLink();
      if (now >= this.closeBy) {
        this.end(false);
      }
      return;
    }
    this.leases.watchValidity();
    this.waits.watch(now);
    watchSilence(this, now);
    beatIfDue(this, now);
    this.link?.watchCredential(now);
    this.sendAgain(now);
    this.moves.tick(now);
  }

  private sendAgain(now: number): void {
    if (this.link === null || this.again.length === 0) {
      return;
    }
    const due = this.again.filter(({ at }) => at <= now);
    this.again = this.again.filter(({ at }) => at > now);
    for (const { about } of due) {
      if (about.kind === "acquire") {
        this.waits.send(about.key);
      } else if (about.kind === "attach") {
        this.leases.attach(about.key);
      } else if (about.kind === "release" && about.part === undefined) {
        this.releases.send(about.key);
      } else if (about.kind === "release" && about.part !== undefined) {
        this.releases.sendPart(about.key, about.part);
      }
    }
  }

  /** Gives everything back, until then, and ends. */
  close(by: number, done: () => void): void {
    this.waits.close(failure("Closed", ""));
    this.releases.giveBackAllLost();
    for (const [leaseId, owned] of [...this.leases.all]) {
      this.leases.close(leaseId, owned);
    }
    this.leases.all.clear();
    this.moves.stop();
    this.closed = done;
    this.closeBy = by;
    this.closeLinkBy = (this.clock.now() + by) / 2;
    if (this.link === null) {
      this.end(false);
    } else {
      this.closeLink();
    }
  }

  /**
   * Closes the stream once the keeper is closing and no unary release is under way, or after half of the shutdown time.
   */
  closeLink(): void {
    const isDue = this.releases.alone === 0 || this.clock.now() >= this.closeLinkBy;
    if (this.closed !== null && this.link !== null && !this.isLinkClosed && isDue) {
      this.isLinkClosed = true;
      this.link.close();
    }
  }

  /** A stream is gone. */
  broken(link: Link): void {
    if (link !== this.link) {
      return;
    }
    this.link = null;
    if (this.closed !== null) {
      this.end(true);
      return;
    }
    log("the lease stream broke");
    this.offStream();
    this.moves.broken();
  }

  /** Brings everything to a new stream. What the old one would still say is said again here. */
  switch(link: Link): void {
    const old = this.link;
    this.link = link;
    old?.cut();
    this.offStream();
    this.leases.takeUp();
    this.waits.takeUp();
  }

  private offStream(): void {
    this.again = [];
    this.waits.offStream();
    this.leases.offStream();
  }

  private end(isClosed: boolean): void {
    const done = this.closed;
    this.closed = null;
    this.link?.cut();
    this.link = null;
    this.releases.closed(isClosed);
    done?.();
  }
}
