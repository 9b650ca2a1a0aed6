// A TCP proxy in front of a broker that breaks and rejects connections, and drops and delays packets.

import { EventEmitter, once } from "node:events";
import type { Socket } from "node:net";
import { connect, createServer } from "node:net";
import type { TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { startServer } from "./fixtures.js";

/** Direction of packets. */
export type Direction = "toBroker" | "toClient";

/** A proxy that runs until the test ends. */
export class Proxy {
  /** Endpoint of the proxy. */
  url = "";
  /** Number of connections that were opened. */
  connectionCount = 0;
  /** Bytes that clients have sent, as Latin-1 text. */
  sentText = "";
  /** Number of dropped bytes. */
  droppedBytes = 0;
  /** True to reset new connections at once. */
  rejectsConnections = false;
  /** Delay of packets from the broker, in milliseconds. */
  delayMs = 0;
  private isHeld = false;
  private droppedDirections: readonly Direction[] = [];
  private readonly sockets = new Set<Socket>();
  private readonly changed = new EventEmitter();

  private constructor(private readonly brokerAddress: string) {}

  static async start(t: TestContext, brokerAddress: string): Promise<Proxy> {
    const server = createServer();
    const proxy = new Proxy(brokerAddress);
    server.on("connection", (socket) => {
      proxy.serve(socket);
    });
    proxy.url = await startServer(t, server);
    t.after(() => {
      proxy.resetConnections();
    });
    return proxy;
  }

  /** Drops packets in these directions, while connections stay open. */
  drop(...directions: Direction[]): void {
    this.droppedDirections = directions;
  }

  /** Holds packets from the broker until a call with `false`. */
  setHeld(isHeld: boolean): void {
    this.isHeld = isHeld;
    this.changed.emit("changed");
  }

  /** Resets every connection. */
  resetConnections(): void {
    for (const socket of this.sockets) {
      socket.resetAndDestroy();
    }
    this.sockets.clear();
  }

  /** Waits until the condition is true, and checks it after each change of the proxy. */
  async waitUntil(condition: () => boolean): Promise<void> {
    while (!condition()) {
      await once(this.changed, "changed");
    }
  }

  private serve(clientSocket: Socket): void {
    this.connectionCount += 1;
    this.changed.emit("changed");
    if (this.rejectsConnections) {
      clientSocket.on("error", () => undefined);
      clientSocket.resetAndDestroy();
      return;
    }
    const [host, port] = this.brokerAddress.split(":");
    const brokerSocket = connect(Number(port), host);
    this.pump(clientSocket, brokerSocket, "toBroker");
    this.pump(brokerSocket, clientSocket, "toClient");
  }

  private pump(from: Socket, to: Socket, direction: Direction): void {
    from.setNoDelay(true);
    this.sockets.add(from);
    // The chain of promises keeps the order of delayed packets.
    let previousWrite = Promise.resolve();
    from.on("data", (data) => {
      if (direction === "toBroker") {
        this.sentText += data.toString("latin1");
      }
      if (this.droppedDirections.includes(direction)) {
        this.droppedBytes += data.length;
        this.changed.emit("changed");
        return;
      }
      const writeAt = performance.now() + (direction === "toClient" ? this.delayMs : 0);
      previousWrite = previousWrite.then(async () => {
        const remainingMs = writeAt - performance.now();
        if (remainingMs > 0) {
          await sleep(remainingMs);
        }
        if (direction === "toClient") {
          await this.waitUntil(() => !this.isHeld);
        }
        to.write(data);
      });
    });
    from.on("error", () => undefined);
    from.on("close", () => {
      this.sockets.delete(from);
      to.destroy();
    });
  }
}
