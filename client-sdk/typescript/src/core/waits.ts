// Calls without an answer: sent again on every stream until there is one.

import type { Granted as WireGranted, Queued, Refused } from "../gen/leasehold/v1/lock_service.js";
import type { Lease as WireLease } from "../gen/leasehold/v1/types.js";
import { ErrorReason } from "../gen/leasehold/v1/types.js";
import type { Answer, Ask, Failure } from "../order.js";
import type { Keeper } from "./keeper.js";
import type { Message } from "./link.js";
import { jittered } from "./moves.js";
import { failure, holder, isOpen, lostFailure, refusal } from "./reading.js";
import { acquireAllRequest, acquireRequest } from "./requests.js";

/** How much longer than it may wait a call of unknown outcome is repeated. */
const REPEAT_LIMIT_MS = 5_000;
/** How soon a call is repeated that was refused for now. */
const REPEAT_PAUSE_MS = 200;
/** How soon another broker is tried when this one does not reach its store. */
const STORE_PAUSE_MS = 2_000;
/** The longest pause between heartbeats while a call waits. */
const WAITING_MS = 2_000;
/** The shortest ttl that a broker grants. */
const TTL_MIN_MS = 1_000;

/** A call without an answer. */
export class Wait {
  /** How long it may wait in line. */
  readonly until: number;
  attachNumber = 0;
  /** As which it was sent last; 0: not on this stream. */
  callId = 0;
  /** Why it has no answer yet. */
  why: Failure | null = null;
  /** Nobody waits for the answer any more. */
  isGone = false;
  /** How often heartbeats are to be sent while it waits. */
  readonly intervalMs: number;

  constructor(
    private readonly keeper: Keeper,
    readonly ask: Ask,
    private readonly id: number,
  ) {
    this.until = keeper.clock.now() + ask.waitMs;
    const ttlMs = ask.call.ttlMs === undefined ? 3 * WAITING_MS : Math.max(ask.call.ttlMs, TTL_MIN_MS);
    this.intervalMs = Math.min(ttlMs / 3, WAITING_MS);
  }

  get requestId(): string {
    return this.ask.call.requestId;
  }

  /** Answers, once. What is granted to a caller that is gone is given back. */
  answer(answer: Answer): void {
    if (!this.isGone) {
      this.isGone = true;
      this.keeper.core.tell({ kind: "answer", id: this.id, answer });
    } else if (answer.kind === "granted") {
      const locks = answer.granted.tokens.map((token) => token.lock);
      this.keeper.releases.giveBack(answer.granted.leaseId, { requestId: this.requestId, locks }, null);
    }
  }

  /** Says that it has got nothing. */
  fail(failed: Failure): void {
    this.answer({ kind: "failed", failure: failed });
  }

  /** Tells the caller where it stands. */
  place(queued: Queued): void {
    if (!this.isGone) {
      const { position, queueLength } = queued;
      const place = { position, queueLength, holders: queued.holders.map(holder) };
      this.keeper.core.tell({ kind: "place", id: this.id, place });
    }
  }

  /** Why it has got nothing. */
  refused(said: Refused): Failure {
    const refused = refusal(said);
    // One that was late when it was repeated was asked without waiting: to its caller it has waited.
    return refused.code === "Held" && this.ask.waitMs > 0 ? { ...refused, code: "WaitTimeout" } : refused;
  }
}

/** The calls of one stream, by request. */
export class Waits {
  all = new Map<string, Wait>();

  constructor(private readonly keeper: Keeper) {}

  /** One more call, whose answer has this id. */
  ask(ask: Ask, id: number): void {
    const wait = new Wait(this.keeper, ask, id);
    this.all.set(wait.requestId, wait);
    this.send(wait.requestId);
  }

  /** Sends a call, if it can be sent now. Under a lease that is only once that is on this stream. */
  send(requestId: string): void {
    const { link } = this.keeper;
    const wait = this.all.get(requestId);
    if (link === null || wait === undefined) {
      return;
    }
    let under: WireLease | undefined;
    if (wait.ask.under !== undefined) {
      const owned = this.keeper.leases.all.get(wait.ask.under);
      if (owned?.release !== null) {
        this.all.delete(requestId);
        wait.fail(lostFailure({ reason: "Released", message: "" }));
        return;
      }
      if (!owned.isHere) {
        return;
      }
      under = owned.lease;
      wait.attachNumber = owned.attachNumber;
    } else {
      wait.attachNumber += 1;
    }
    wait.callId = link.call({ kind: "acquire", key: requestId }, (callId) => this.message(wait, callId, under));
  }

  private message(wait: Wait, callId: number, under: WireLease | undefined): Message {
    const { call } = wait.ask;
    // A call that is late already still asks once, without waiting.
    const leftMs = Math.max(0, Math.min(wait.until - this.keeper.clock.now(), wait.ask.waitMs));
    const { attachNumber } = wait;
    const { traceparent } = call;
    if (call.targets.length === 1) {
      const request = acquireRequest(call, leftMs, under);
      return { $case: "acquire", value: { callId, attachNumber, traceparent, request } };
    }
    const request = acquireAllRequest(call, leftMs);
    return { $case: "acquireAll", value: { callId, attachNumber, traceparent, request } };
  }

  /** Sends what could not be sent before, since its lease was not here. If that is over now, so are they. */
  sendUnder(leaseId: string): void {
    for (const wait of [...this.all.values()]) {
      if (wait.ask.under === leaseId && wait.callId === 0) {
        this.send(wait.requestId);
      }
    }
  }

  /** The caller is gone: the broker answers with a refusal, or with a grant that is given back. */
  cancel(requestId: string): void {
    const wait = this.all.get(requestId);
    if (wait === undefined) {
      this.keeper.leases.cancelUnborn(requestId);
      return;
    }
    wait.fail(failure("Cancelled", ""));
    if (this.keeper.link !== null && wait.callId !== 0) {
      this.keeper.link.send({ $case: "cancel", value: { callId: wait.callId } });
    } else {
      this.all.delete(requestId);
    }
  }

  /** Where a call stands. */
  queued(queued: Queued): void {
    const about = this.keeper.link?.asked(queued.callId);
    if (about?.kind === "acquire") {
      this.all.get(about.key)?.place(queued);
    }
  }

  /** A call has got its locks. */
  granted(granted: WireGranted): void {
    const { link } = this.keeper;
    const called = link?.answered(granted.callId);
    if (link === null || called?.about.kind !== "acquire" || granted.lease === undefined) {
      return;
    }
    const wait = this.all.get(called.about.key);
    if (wait === undefined) {
      // An earlier sending of the call was answered, too; its holder decides.
      return;
    }
    this.all.delete(called.about.key);
    // The store was asked after both; after a pause the heartbeat is the older one.
    const sent = Math.max(link.beatSent(granted.asOfSequence) ?? called.sent, called.sent);
    if (wait.ask.under === undefined) {
      this.keeper.leases.own(granted.lease, wait, sent);
    } else {
      this.keeper.leases.enter(granted.lease, wait);
    }
  }

  /** A call has got nothing, for good or for now. */
  refused(requestId: string, said: Refused): void {
    const wait = this.all.get(requestId);
    if (wait?.callId !== said.callId) {
      return;
    }
    wait.callId = 0;
    if (wait.isGone || !isOpen(said)) {
      this.all.delete(requestId);
      wait.fail(wait.refused(said));
      return;
    }
    wait.why = refusal(said);
    this.keeper.putOff(jittered(REPEAT_PAUSE_MS), { kind: "acquire", key: requestId });
    // A broker that goes away, or does not reach its store, is not the one to ask again.
    if (said.reason === ErrorReason.DRAINING) {
      this.keeper.moves.leave(0);
    } else if (said.reason === ErrorReason.STORE_UNAVAILABLE && this.keeper.core.brokers.endpoints.length > 1) {
      this.keeper.moves.leave(jittered(STORE_PAUSE_MS));
    }
  }

  /** Gives up calls that nobody has answered for too long. */
  watch(now: number): void {
    for (const wait of [...this.all.values()]) {
      if (!wait.isGone && now >= wait.until + REPEAT_LIMIT_MS) {
        const why = this.keeper.link === null ? this.keeper.moves.whyNot : "the broker does not answer";
        wait.fail(wait.why ?? failure("Unavailable", why));
        this.cancel(wait.requestId);
      }
    }
  }

  /**
   * The stream is gone, and with it every call of somebody who is gone, too: the broker gives up what does not come
   * again.
   */
  offStream(): void {
    for (const wait of [...this.all.values()]) {
      wait.callId = 0;
      if (wait.isGone) {
        this.all.delete(wait.requestId);
      }
    }
  }

  /** Brings every call to a new stream. */
  takeUp(): void {
    for (const requestId of [...this.all.keys()]) {
      this.send(requestId);
    }
  }

  /** Nothing comes of any of them. */
  close(why: Failure): void {
    for (const wait of this.all.values()) {
      wait.fail(why);
    }
    this.all.clear();
  }
}
