// Backend in a worker thread: sends commands to the thread, and handles its messages. The thread keeps the process
// alive only while a call waits for a response.

import { Worker } from "node:worker_threads";

import type { AcquireCallbacks, Backend } from "./backend.js";
import type { Clock, SharedClock } from "./clock.js";
import { clockOf, createSharedClock } from "./clock.js";
import type { LeaseholdError } from "./errors.js";
import { ClosedError, InternalError } from "./errors.js";
import { EventLoopMonitor } from "./event-loop-monitor.js";
import { exitHook } from "./exit.js";
import { errorOfFailure } from "./failures.js";
import { LeaseHandle } from "./lease-handle.js";
import type {
  AcquireCommand,
  AcquireScope,
  Command,
  CommandResponse,
  ConnectionSettings,
  GrantedLease,
  LockState,
  WorkerMessage,
  WorkerSettings,
} from "./messages.js";
import type { LockName } from "./target.js";
import { LeaseValidity } from "./validity.js";

/** Time for which a shutdown waits for responses of brokers. */
const SHUTDOWN_TIMEOUT_MS = 2_000;
/** Additional time for which a shutdown waits for the worker thread, which applies that limit. */
const THREAD_TIMEOUT_MS = 500;

interface PendingCommand {
  onResponse(response: CommandResponse): void;
  onFailed(error: LeaseholdError): void;
  onPosition?: AcquireCallbacks["onPosition"];
}

/** A backend that starts its worker thread with the first command. */
export class ThreadBackend implements Backend {
  readonly clock: Clock;
  private readonly sharedClock: SharedClock;
  private worker: Worker | null = null;
  /** Error for which further commands fail; null while the backend is open. */
  private closedError: LeaseholdError | null = null;
  private closing: Promise<void> | null = null;
  private lastId = 0;
  /** Callbacks of the commands without a response, by command id. */
  private readonly pendingCommands = new Map<number, PendingCommand>();
  private readonly commandIds = new Map<string, number>();
  private readonly handles = new Map<string, Set<LeaseHandle>>();
  private readonly eventLoopMonitor: EventLoopMonitor;
  private readonly startClose = (): (() => void) => this.closeAtExit();

  constructor(
    private readonly connectionSettings: ConnectionSettings,
    private readonly releaseAtExit: boolean,
    readonly warn: (message: string) => void,
  ) {
    this.sharedClock = createSharedClock();
    this.clock = clockOf(this.sharedClock);
    this.eventLoopMonitor = new EventLoopMonitor(warn);
  }

  connect(): Promise<void> {
    return this.request(
      (id) => ({ kind: "connect", id }),
      () => undefined,
    );
  }

  acquire(command: AcquireCommand, callbacks: AcquireCallbacks): void {
    const { requestId } = command.params;
    const finish = <T extends unknown[]>(callback: (...args: T) => void) => {
      return (...args: T) => {
        this.commandIds.delete(requestId);
        callback(...args);
      };
    };
    const onFailed = finish((error: LeaseholdError) => {
      callbacks.onFailed(error);
    });
    const onResponse = finish((response: CommandResponse) => {
      if (response.kind === "granted") {
        callbacks.onGranted(this.createHandle(response.lease, requestId));
      } else {
        callbacks.onFailed(errorOfResponse(response));
      }
    });
    const onPosition = callbacks.onPosition.bind(callbacks);
    const id = this.sendCommand((id) => ({ kind: "acquire", id, acquire: command }), {
      onResponse,
      onFailed,
      onPosition,
    });
    if (id !== null) {
      this.commandIds.set(requestId, id);
    }
  }

  cancel(requestId: string): void {
    const id = this.commandIds.get(requestId);
    if (id === undefined) {
      return;
    }
    this.commandIds.delete(requestId);
    // The response is on its way or follows at once. If it is a grant, the grant is released.
    const onResponse = (response: CommandResponse) => {
      if (response.kind === "granted") {
        this.createHandle(response.lease, requestId)
          .release()
          ?.catch(() => undefined);
      }
    };
    this.pendingCommands.set(id, { onResponse, onFailed: () => undefined });
    this.post({ kind: "cancel", requestId });
  }

  release(handle: LeaseHandle, scope: AcquireScope): Promise<void> {
    this.removeHandle(handle);
    return this.request(
      (id) => ({ kind: "release", id, leaseId: handle.leaseId, scope }),
      () => undefined,
    );
  }

  getLockState(lock: LockName): Promise<LockState | null> {
    return this.request(
      (id) => ({ kind: "getLockState", id, lock }),
      (response) => (response.kind === "lockState" ? response.state : null),
    );
  }

  setLimit(lock: LockName, limit: number | null): Promise<number | null> {
    return this.request(
      (id) => ({ kind: "setLimit", id, lock, limit }),
      (response) => (response.kind === "previousLimit" ? response.limit : null),
    );
  }

  close(): Promise<void> {
    this.closing ??= this.closeOnce();
    return this.closing;
  }

  private async closeOnce(): Promise<void> {
    const { worker } = this;
    if (worker === null || this.closedError !== null) {
      this.closedError ??= new ClosedError();
      return;
    }
    const closed = this.request(
      (id) => ({ kind: "close", id, timeoutMs: SHUTDOWN_TIMEOUT_MS, closedFlag: new SharedArrayBuffer(4) }),
      () => undefined,
    );
    this.closedError = new ClosedError();
    let timer: NodeJS.Timeout | undefined;
    const timeout = new Promise((resolve) => (timer = setTimeout(resolve, SHUTDOWN_TIMEOUT_MS + THREAD_TIMEOUT_MS)));
    await Promise.race([closed, timeout]);
    clearTimeout(timer);
    await worker.terminate();
  }

  /** Starts closing without the event loop. The returned function blocks until the worker thread has closed. */
  private closeAtExit(): () => void {
    const closedFlag = new SharedArrayBuffer(4);
    this.post({ kind: "close", id: 0, timeoutMs: SHUTDOWN_TIMEOUT_MS, closedFlag });
    return () => {
      Atomics.wait(new Int32Array(closedFlag), 0, 0, SHUTDOWN_TIMEOUT_MS + THREAD_TIMEOUT_MS);
    };
  }

  private request<T>(
    buildCommand: (id: number) => Command,
    convertResponse: (response: CommandResponse) => T,
  ): Promise<T> {
    return new Promise((resolve, reject) => {
      const onResponse = (response: CommandResponse) => {
        if (response.kind === "failed") {
          reject(errorOfResponse(response));
        } else {
          resolve(convertResponse(response));
        }
      };
      this.sendCommand(buildCommand, { onResponse, onFailed: reject });
    });
  }

  private sendCommand(buildCommand: (id: number) => Command, pendingCommand: PendingCommand): number | null {
    if (this.closedError !== null) {
      pendingCommand.onFailed(this.closedError);
      return null;
    }
    this.lastId += 1;
    const id = this.lastId;
    const worker = this.startWorker();
    this.pendingCommands.set(id, pendingCommand);
    // A pending command keeps the process alive.
    worker.ref();
    this.post(buildCommand(id));
    return id;
  }

  private post(command: Command): void {
    this.worker?.postMessage(command);
  }

  private startWorker(): Worker {
    if (this.worker !== null) {
      return this.worker;
    }
    const workerData: WorkerSettings = { connectionSettings: this.connectionSettings, clock: this.sharedClock };
    // The worker thread needs none of the program's loaders and flags.
    const worker = new Worker(new URL("./runtime/worker.js", import.meta.url), {
      name: "leasehold",
      workerData,
      execArgv: [],
    });
    worker.on("message", (message: WorkerMessage) => {
      this.onMessage(message);
    });
    worker.on("error", (error) => {
      this.onWorkerEnded(new InternalError(`the client's worker thread failed: ${error.message}`));
    });
    worker.on("exit", () => {
      this.onWorkerEnded(new InternalError("the client's worker thread has ended"));
    });
    this.worker = worker;
    if (this.releaseAtExit) {
      exitHook.add(this.startClose);
    }
    return worker;
  }

  private onMessage(message: WorkerMessage): void {
    switch (message.kind) {
      case "response":
        this.onResponse(message.id, message.response);
        break;
      case "position":
        this.pendingCommands.get(message.id)?.onPosition?.(message.position);
        break;
      case "lost":
        for (const handle of this.handles.get(message.leaseId) ?? []) {
          handle.recordLoss(message.loss);
          this.removeHandle(handle);
        }
        break;
      case "error":
        this.warn(`internal error in the client's worker thread: ${message.text}`);
    }
  }

  private onResponse(id: number, response: CommandResponse): void {
    const pendingCommand = this.pendingCommands.get(id);
    this.pendingCommands.delete(id);
    this.unrefIfIdle();
    pendingCommand?.onResponse(response);
  }

  /** Lets the process exit if no command is pending. */
  private unrefIfIdle(): void {
    if (this.pendingCommands.size === 0) {
      this.worker?.unref();
    }
  }

  private createHandle(granted: GrantedLease, requestId: string): LeaseHandle {
    const handle = new LeaseHandle(granted, requestId, new LeaseValidity(granted.validity, this.clock), this);
    const handles = this.handles.get(handle.leaseId) ?? new Set();
    this.handles.set(handle.leaseId, handles.add(handle));
    this.eventLoopMonitor.add(handle);
    return handle;
  }

  private removeHandle(handle: LeaseHandle): void {
    const handles = this.handles.get(handle.leaseId);
    handles?.delete(handle);
    if (handles?.size === 0) {
      this.handles.delete(handle.leaseId);
    }
    this.eventLoopMonitor.remove(handle);
  }

  /** Handles the end of the worker thread: all leases are lost, and all pending commands fail. */
  private onWorkerEnded(error: LeaseholdError): void {
    exitHook.delete(this.startClose);
    this.closedError ??= error;
    const { closedError } = this;
    const reason = closedError instanceof ClosedError ? "Closed" : "Other";
    for (const handles of [...this.handles.values()]) {
      for (const handle of [...handles]) {
        this.removeHandle(handle);
        handle.recordLoss({ reason, message: reason === "Closed" ? "" : closedError.message });
      }
    }
    const pendingCommands = [...this.pendingCommands.values()];
    this.pendingCommands.clear();
    for (const pendingCommand of pendingCommands) {
      pendingCommand.onFailed(closedError);
    }
  }
}

function errorOfResponse(response: CommandResponse): LeaseholdError {
  return response.kind === "failed"
    ? errorOfFailure(response.failure)
    : new InternalError(`unexpected response of the worker thread: ${response.kind}`);
}
