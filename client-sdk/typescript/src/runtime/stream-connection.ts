// One lease stream of a client: its calls, heartbeats, and silence of the broker.

import type { ClientDuplexStream, ServiceError, StatusObject } from "@grpc/grpc-js";
import { status as Code } from "@grpc/grpc-js";

import type { Clock } from "../clock.js";
import type { GetLockRequest, GetLockResponse } from "../gen/leasehold/v1/inspection_service.js";
import { InspectionServiceClient } from "../gen/leasehold/v1/inspection_service.js";
import type {
  HoldRequest,
  HoldResponse,
  ReleaseRequest,
  SetLockLimitRequest,
  SetLockLimitResponse,
} from "../gen/leasehold/v1/lock_service.js";
import { LockServiceClient } from "../gen/leasehold/v1/lock_service.js";
import type { ConnectionSettings, Endpoint } from "../messages.js";
import { callMetadata, channelCredentials, channelOptions, credentialOf, metadataOf } from "./endpoint.js";

/** Number of heartbeats whose send time is stored. Confirmations of older ones are ignored. */
const HEARTBEAT_TIMES_MAX = 256;
/** Deadline of a unary call. A release without a response is then repeated. */
const CALL_TIMEOUT_MS = 5_000;
/** Interval at which a stream checks for a changed credential. */
const CREDENTIAL_INTERVAL_MS = 1_000;

/**
 * Subject of a call on the stream: an acquire by its request id, or a lease by its id and the number of the partial
 * release.
 */
export type CallSubject =
  | { kind: "acquire"; key: string }
  | { kind: "attach"; key: string }
  | { kind: "release"; key: string; partialId?: number | undefined }
  | { kind: "credential" }
  | { kind: "nothing" };

/** Callbacks for the events of a stream. */
export interface ConnectionListener {
  onOpened(connection: StreamConnection): void;
  onOpenFailed(connection: StreamConnection, reason: string, isUnauthenticated: boolean): void;
  onMessage(connection: StreamConnection, response: HoldResponse): void;
  onDisconnect(connection: StreamConnection): void;
}

/** A message that the client sends. */
export type ClientMessage = NonNullable<HoldRequest["message"]>;

interface PendingCall {
  subject: CallSubject;
  sentAt: number;
}

/** A lease stream on its own connection. */
export class StreamConnection {
  readonly endpoint: Endpoint;
  readonly startedAt: number;
  private readonly client: LockServiceClient;
  private readonly stream: ClientDuplexStream<HoldRequest, HoldResponse>;
  private readonly pendingCalls = new Map<number, PendingCall>();
  private lastCallId = 0;
  /** Send times of the newest heartbeats. */
  private readonly heartbeatTimes: number[] = [];
  private lastHeartbeatSequence = 0;
  private firstUnansweredAt: number | null = null;
  /**
   * Credential that the broker has accepted for the stream. `sentCredential` is the one that was sent to replace it.
   */
  private credential: string | undefined;
  private sentCredential: string | undefined;
  private credentialReadAt: number;

  /** Opens a stream. Throws if the credential cannot be read. */
  constructor(
    private readonly settings: ConnectionSettings,
    endpointIndex: number,
    private readonly clock: Clock,
    listener: ConnectionListener,
  ) {
    const endpoint = settings.endpoints[endpointIndex % settings.endpoints.length];
    if (endpoint === undefined) {
      throw new RangeError("no endpoint");
    }
    this.endpoint = endpoint;
    this.startedAt = clock.now();
    this.credentialReadAt = this.startedAt;
    this.credential = credentialOf(settings);
    const channelAuth = channelCredentials(settings, endpoint);
    this.client = new LockServiceClient(endpoint.address, channelAuth, channelOptions(settings));
    this.stream = this.client.hold(metadataOf(this.credential));
    this.listen(listener);
  }

  private listen(listener: ConnectionListener): void {
    let isOpen = false;
    // An immediate rejection has no headers.
    this.stream.on("metadata", () => {
      isOpen = true;
      listener.onOpened(this);
    });
    this.stream.on("data", (response: HoldResponse) => {
      listener.onMessage(this, response);
    });
    // The event `status`, which follows, has the same information.
    this.stream.on("error", () => undefined);
    this.stream.on("status", (status: StatusObject) => {
      if (isOpen) {
        listener.onDisconnect(this);
      } else {
        // If the credential was replaced meanwhile, its rejection does not apply to the new one.
        const isUnauthenticated = status.code === Code.UNAUTHENTICATED && this.readCredential() === this.credential;
        listener.onOpenFailed(this, describeOpenFailure(this.endpoint, status), isUnauthenticated);
      }
      this.client.close();
    });
  }

  /** Records that a message of the broker was received. */
  recordMessage(): void {
    this.firstUnansweredAt = null;
  }

  /** Sends a call with a new call id, and returns the id. */
  call(subject: CallSubject, buildMessage: (callId: number) => ClientMessage): number {
    this.lastCallId += 1;
    const callId = this.lastCallId;
    this.pendingCalls.set(callId, { subject, sentAt: this.clock.now() });
    this.send(buildMessage(callId));
    return callId;
  }

  /** Sends a message without a call id. The end of the stream is reported by its events. */
  send(message: ClientMessage): void {
    if (this.stream.writable) {
      this.stream.write({ message });
    }
  }

  /** Returns the subject of a call that has no response yet. */
  pending(callId: number): CallSubject | undefined {
    return this.pendingCalls.get(callId)?.subject;
  }

  /** Removes a call that has a response. Returns its subject and the time at which it was sent. */
  complete(callId: number): PendingCall | undefined {
    const pendingCall = this.pendingCalls.get(callId);
    this.pendingCalls.delete(callId);
    return pendingCall;
  }

  /** Sends a heartbeat. */
  sendHeartbeat(): void {
    // The time is stored before the heartbeat is sent, so that it is never too late.
    const now = this.clock.now();
    this.firstUnansweredAt ??= now;
    this.heartbeatTimes.push(now);
    if (this.heartbeatTimes.length > HEARTBEAT_TIMES_MAX) {
      this.heartbeatTimes.shift();
    }
    this.lastHeartbeatSequence += 1;
    this.send({ $case: "heartbeat", value: { sequence: this.lastHeartbeatSequence } });
  }

  /** Returns the time at which a heartbeat was sent, if it is stored. */
  heartbeatSentAt(sequence: number): number | undefined {
    return this.heartbeatTimes[sequence - 1 - (this.lastHeartbeatSequence - this.heartbeatTimes.length)];
  }

  /** Send time of the newest heartbeat. */
  get lastHeartbeatSentAt(): number | undefined {
    return this.heartbeatTimes.at(-1);
  }

  /** Send time of the first heartbeat since the last received message; null if no heartbeat is unanswered. */
  get unansweredSince(): number | null {
    return this.firstUnansweredAt;
  }

  /** Sends a changed credential to the broker, because a stream must not outlive its credential. */
  refreshCredential(now: number): void {
    if (this.sentCredential !== undefined || now < this.credentialReadAt + CREDENTIAL_INTERVAL_MS) {
      return;
    }
    this.credentialReadAt = now;
    const authorization = this.readCredential();
    if (authorization !== undefined && authorization !== this.credential) {
      this.sentCredential = authorization;
      this.call({ kind: "credential" }, (callId) => ({ $case: "refreshCredential", value: { callId, authorization } }));
    }
  }

  private readCredential(): string | undefined {
    try {
      return credentialOf(this.settings);
    } catch {
      // A file that cannot be read may be about to be replaced.
      return undefined;
    }
  }

  /** Handles the response to a changed credential. A rejected one is sent again. */
  onCredentialResponse(isAccepted: boolean): void {
    if (isAccepted) {
      this.credential = this.sentCredential;
    }
    this.sentCredential = undefined;
  }

  /** Sends a release as a unary call. */
  release(request: ReleaseRequest, callback: (error: ServiceError | null) => void): void {
    this.startUnaryCall(callback, () => {
      this.client.release(request, callMetadata(this.settings), this.callOptions(), callback);
    });
  }

  /** Sends a unary request to set the limit of a semaphore. */
  setLockLimit(
    request: SetLockLimitRequest,
    callback: (error: ServiceError | null, response?: SetLockLimitResponse) => void,
  ): void {
    this.startUnaryCall(callback, () => {
      this.client.setLockLimit(request, callMetadata(this.settings), this.callOptions(), callback);
    });
  }

  /** Sends a unary request for the state of a lock. */
  getLock(request: GetLockRequest, callback: (error: ServiceError | null, response?: GetLockResponse) => void): void {
    this.startUnaryCall(callback, () => {
      const { address } = this.endpoint;
      const channelOverride = this.client.getChannel();
      const channelAuth = channelCredentials(this.settings, this.endpoint);
      const client = new InspectionServiceClient(address, channelAuth, { channelOverride });
      client.getLock(request, callMetadata(this.settings), this.callOptions(), callback);
    });
  }

  /** Closes the stream gracefully: the broker releases every lease that is attached to it, and ends the stream. */
  close(): void {
    this.send({ $case: "close", value: {} });
    this.stream.end();
  }

  /** Aborts the stream without releasing its leases. */
  abort(): void {
    this.stream.cancel();
  }

  private callOptions(): { deadline: number } {
    return { deadline: Date.now() + CALL_TIMEOUT_MS };
  }

  private startUnaryCall(onFailed: (error: ServiceError) => void, call: () => void): void {
    try {
      call();
    } catch (error) {
      // The channel was just closed, or the credential cannot be read.
      const details = error instanceof Error ? error.message : String(error);
      const metadata = callMetadata({ endpoints: [], tls: {} });
      onFailed(Object.assign(new Error(details), { code: Code.UNAVAILABLE, details, metadata }));
    }
  }
}

function describeOpenFailure(endpoint: Endpoint, status: StatusObject): string {
  // With TLS 1.3 the server rejects a client certificate after the client has finished its handshake, and the reason
  // may get lost.
  const isUnclear = endpoint.isTls && status.code === Code.UNAVAILABLE;
  const hint = isUnclear ? "; the broker may require a client certificate" : "";
  return `${endpoint.name}: ${Code[status.code]}: ${status.details}${hint}`;
}
