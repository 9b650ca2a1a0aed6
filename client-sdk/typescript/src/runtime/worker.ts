// Entry point of the worker thread, which renews a client's leases so that the program cannot delay heartbeats.

import { parentPort, workerData } from "node:worker_threads";

import { clockOf } from "../clock.js";
import type { Command, CommandResponse, WorkerMessage, WorkerSettings } from "../messages.js";
import { ClientRuntime } from "./client-runtime.js";

const messagePort = parentPort;
if (messagePort === null) {
  throw new Error("this module runs in the client's worker thread: import the package instead");
}
const settings = workerData as WorkerSettings;
const runtime = new ClientRuntime(settings.connectionSettings, clockOf(settings.clock), (message: WorkerMessage) => {
  messagePort.postMessage(message);
});

const onCommand = runtime.wrapCallback((command: Command) => {
  const reply = (response: CommandResponse) => {
    if ("id" in command) {
      runtime.notify({ kind: "response", id: command.id, response });
    }
  };
  switch (command.kind) {
    case "connect":
      runtime.connect(reply);
      break;
    case "acquire":
      runtime.acquire(command.acquire, command.id);
      break;
    case "cancel":
      runtime.cancel(command.requestId);
      break;
    case "release":
      runtime.release(command.leaseId, command.scope, reply);
      break;
    case "getLockState":
      runtime.getLockState(command.lock, reply);
      break;
    case "setLimit":
      runtime.setLimit(command.lock, command.limit, reply);
      break;
    case "close":
      runtime.close(command.timeoutMs, () => {
        reply({ kind: "done" });
        const closedFlag = new Int32Array(command.closedFlag);
        Atomics.store(closedFlag, 0, 1);
        Atomics.notify(closedFlag, 0);
      });
  }
});
messagePort.on("message", onCommand);
