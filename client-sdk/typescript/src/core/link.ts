// One lease stream as its client sees it: what was sent when, and whether the other side answers.

import type { ClientDuplexStream, ServiceError, StatusObject } from "@grpc/grpc-js";
import { status as Code } from "@grpc/grpc-js";

import type { Clock } from "../clock.js";
import type { GetLockRequest, GetLockResponse } from "../gen/leasehold/v1/inspection_service.js";
import { InspectionServiceClient } from "../gen/leasehold/v1/inspection_service.js";
import type { HoldRequest, HoldResponse, ReleaseRequest } from "../gen/leasehold/v1/lock_service.js";
import { LockServiceClient } from "../gen/leasehold/v1/lock_service.js";
import type { Brokers, Endpoint } from "../order.js";
import { callMetadata, channelCredentials, channelOptions, credentialOf, metadataOf } from "./endpoint.js";

/** Heartbeats whose time of sending is remembered. An acknowledgement of an older one is of no use. */
const BEATS_KEPT = 256;
/** A unary call without an answer is repeated then. */
const CALL_LIMIT_MS = 5_000;
/** How often a stream looks for another credential. */
const CREDENTIAL_EVERY_MS = 1_000;

/** What a call of the stream is about: a request, a lease, or the part of one with this number. */
export type About =
  | { kind: "acquire"; key: string }
  | { kind: "attach"; key: string }
  | { kind: "release"; key: string; part?: number | undefined }
  | { kind: "credential" }
  | { kind: "nothing" };

/** Who is told of a link. */
export interface Listener {
  opened(link: Link): void;
  failed(link: Link, why: string, isDenied: boolean): void;
  heard(link: Link, response: HoldResponse): void;
  broken(link: Link): void;
}

/** One of the messages that a client sends. */
export type Message = NonNullable<HoldRequest["message"]>;

interface Called {
  about: About;
  sent: number;
}

/** One stream on a connection of its own. */
export class Link {
  readonly endpoint: Endpoint;
  readonly begunAt: number;
  private readonly client: LockServiceClient;
  private readonly stream: ClientDuplexStream<HoldRequest, HoldResponse>;
  private readonly calls = new Map<number, Called>();
  private lastCall = 0;
  /** When the newest heartbeats were sent. */
  private readonly beats: number[] = [];
  private lastBeatSequence = 0;
  private unanswered: number | null = null;
  /** What the broker knows the stream by, and what it is to be from now on. */
  private credential: string | undefined;
  private showing: string | undefined;
  private lookedAt: number;

  /** Throws if there is no credential to show. */
  constructor(
    private readonly brokers: Brokers,
    at: number,
    private readonly clock: Clock,
    listener: Listener,
  ) {
    const endpoint = brokers.endpoints[at % brokers.endpoints.length];
    if (endpoint === undefined) {
      throw new RangeError("no endpoint");
    }
    this.endpoint = endpoint;
    this.begunAt = clock.now();
    this.lookedAt = this.begunAt;
    this.credential = credentialOf(brokers);
    const trust = channelCredentials(brokers, endpoint);
    this.client = new LockServiceClient(endpoint.address, trust, channelOptions(brokers));
    this.stream = this.client.hold(metadataOf(this.credential));
    this.listen(listener);
  }

  private listen(listener: Listener): void {
    let isOpen = false;
    // A refusal at once has no headers.
    this.stream.on("metadata", () => {
      isOpen = true;
      listener.opened(this);
    });
    this.stream.on("data", (response: HoldResponse) => {
      listener.heard(this, response);
    });
    // The status that follows says the same.
    this.stream.on("error", () => undefined);
    this.stream.on("status", (status: StatusObject) => {
      if (isOpen) {
        listener.broken(this);
      } else {
        // A credential that was replaced meanwhile says nothing of the next one.
        const isDenied = status.code === Code.UNAUTHENTICATED && this.newest() === this.credential;
        listener.failed(this, whyNot(this.endpoint, status), isDenied);
      }
      this.client.close();
    });
  }

  /** The other side lives. */
  heard(): void {
    this.unanswered = null;
  }

  /** Sends a call, with an id that no call of the stream has had. */
  call(about: About, message: (callId: number) => Message): number {
    this.lastCall += 1;
    const callId = this.lastCall;
    this.calls.set(callId, { about, sent: this.clock.now() });
    this.send(message(callId));
    return callId;
  }

  /** Sends a message that is no call. A stream that has ended says so where it is read. */
  send(message: Message): void {
    if (this.stream.writable) {
      this.stream.write({ message });
    }
  }

  /** What a call is about that has no answer yet. */
  asked(callId: number): About | undefined {
    return this.calls.get(callId)?.about;
  }

  /** What an answer is about, and when that was sent. */
  answered(callId: number): Called | undefined {
    const called = this.calls.get(callId);
    this.calls.delete(callId);
    return called;
  }

  /** Sends a heartbeat. */
  beat(): void {
    // Noted before it is sent: never too late.
    const now = this.clock.now();
    this.unanswered ??= now;
    this.beats.push(now);
    if (this.beats.length > BEATS_KEPT) {
      this.beats.shift();
    }
    this.lastBeatSequence += 1;
    this.send({ $case: "heartbeat", value: { sequence: this.lastBeatSequence } });
  }

  /** When a heartbeat was sent, or handed to be sent: never later than that. */
  beatSent(sequence: number): number | undefined {
    return this.beats[sequence - 1 - (this.lastBeatSequence - this.beats.length)];
  }

  /** When the newest heartbeat was sent. */
  get lastBeat(): number | undefined {
    return this.beats.at(-1);
  }

  /** Since when nothing has answered a heartbeat. */
  get silentSince(): number | null {
    return this.unanswered;
  }

  /** Shows the broker another credential as soon as there is one: a stream must not outlive its own. */
  watchCredential(now: number): void {
    if (this.showing !== undefined || now < this.lookedAt + CREDENTIAL_EVERY_MS) {
      return;
    }
    this.lookedAt = now;
    const authorization = this.newest();
    if (authorization !== undefined && authorization !== this.credential) {
      this.showing = authorization;
      this.call({ kind: "credential" }, (callId) => ({ $case: "refreshCredential", value: { callId, authorization } }));
    }
  }

  private newest(): string | undefined {
    try {
      return credentialOf(this.brokers);
    } catch {
      // A file that cannot be read may be about to be replaced.
      return undefined;
    }
  }

  /** What was shown is accepted, or will be shown again. */
  shown(isAccepted: boolean): void {
    if (isAccepted) {
      this.credential = this.showing;
    }
    this.showing = undefined;
  }

  /** A release by itself, beside the stream. */
  release(request: ReleaseRequest, done: (error: ServiceError | null) => void): void {
    this.unary(done, () => {
      this.client.release(request, callMetadata(this.brokers), this.deadline(), done);
    });
  }

  /** A look at a lock. */
  look(request: GetLockRequest, done: (error: ServiceError | null, found?: GetLockResponse) => void): void {
    this.unary(done, () => {
      const { address } = this.endpoint;
      const channelOverride = this.client.getChannel();
      const trust = channelCredentials(this.brokers, this.endpoint);
      const client = new InspectionServiceClient(address, trust, { channelOverride });
      client.getLock(request, callMetadata(this.brokers), this.deadline(), done);
    });
  }

  /** Ends it in good order: the broker releases every lease that is on it, and ends the stream. */
  close(): void {
    this.send({ $case: "close", value: {} });
    this.stream.end();
  }

  /** Breaks it. */
  cut(): void {
    this.stream.cancel();
  }

  private deadline(): { deadline: number } {
    return { deadline: Date.now() + CALL_LIMIT_MS };
  }

  private unary(failed: (error: ServiceError) => void, call: () => void): void {
    try {
      call();
    } catch (error) {
      // The channel was closed a moment ago, or there is no credential to show.
      const details = error instanceof Error ? error.message : String(error);
      const metadata = callMetadata({ endpoints: [], tls: {} });
      failed(Object.assign(new Error(details), { code: Code.UNAVAILABLE, details, metadata }));
    }
  }
}

function whyNot(endpoint: Endpoint, status: StatusObject): string {
  // TLS 1.3 refuses a client after its side of the handshake, and the reason may get lost.
  const isUnclear = endpoint.isTls && status.code === Code.UNAVAILABLE;
  const hint = isUnclear ? "; does the broker want a client certificate?" : "";
  return `${endpoint.name}: ${Code[status.code]}: ${status.details}${hint}`;
}
