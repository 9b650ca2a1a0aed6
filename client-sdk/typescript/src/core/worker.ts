// The thread that keeps a client's leases, so that nothing in the program can hold heartbeats up.

import { parentPort, workerData } from "node:worker_threads";

import { clockOf } from "../clock.js";
import type { Answer, Order, Settings, Word } from "../order.js";
import { Core } from "./core.js";

const port = parentPort;
if (port === null) {
  throw new Error("this is the client's own thread: import the package instead");
}
const settings = workerData as Settings;
const core = new Core(settings.brokers, clockOf(settings.clock), (word: Word) => {
  port.postMessage(word);
});

const obey = core.guarded((order: Order) => {
  const reply = (answer: Answer) => {
    if ("id" in order) {
      core.tell({ kind: "answer", id: order.id, answer });
    }
  };
  switch (order.kind) {
    case "connect":
      core.connect(reply);
      break;
    case "acquire":
      core.acquire(order.ask, order.id);
      break;
    case "cancel":
      core.cancel(order.requestId);
      break;
    case "release":
      core.release(order.leaseId, order.entry, reply);
      break;
    case "look":
      core.look(order.lock, reply);
      break;
    case "close":
      core.close(order.limitMs, () => {
        reply({ kind: "done" });
        const done = new Int32Array(order.done);
        Atomics.store(done, 0, 1);
        Atomics.notify(done, 0);
      });
  }
});
port.on("message", obey);
