// A TCP proxy before a broker: it cuts, swallows, delays and refuses.

import { EventEmitter, once } from "node:events";
import type { Socket } from "node:net";
import { connect, createServer } from "node:net";
import type { TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { freeServer } from "./site.js";

/** Which packets are meant. */
export type Way = "toBroker" | "toClient";

/** Serves until the test ends. */
export class Proxy {
  /** As an endpoint. */
  url = "";
  /** How many connections were opened. */
  opened = 0;
  /** What clients have said. */
  sent = "";
  /** How many bytes were swallowed. */
  lost = 0;
  /** Closes new connections at once. */
  refuses = false;
  /** Keeps what the broker says for so long. */
  delayMs = 0;
  private holdsBack = false;
  private swallowed: readonly Way[] = [];
  private readonly open = new Set<Socket>();
  private readonly changed = new EventEmitter();

  private constructor(private readonly broker: string) {}

  static async start(t: TestContext, broker: string): Promise<Proxy> {
    const server = createServer();
    const proxy = new Proxy(broker);
    server.on("connection", (socket) => {
      proxy.serve(socket);
    });
    proxy.url = await freeServer(t, server);
    t.after(() => {
      proxy.cut();
    });
    return proxy;
  }

  /** Loses what is sent these ways, while connections stay open. */
  swallow(...ways: Way[]): void {
    this.swallowed = ways;
  }

  /** Keeps what the broker says until it is called with `false`. */
  holdBack(holdsBack: boolean): void {
    this.holdsBack = holdsBack;
    this.changed.emit("changed");
  }

  /** Breaks every connection. */
  cut(): void {
    for (const socket of this.open) {
      socket.resetAndDestroy();
    }
    this.open.clear();
  }

  /** Waits until something has happened here. */
  async until(condition: () => boolean): Promise<void> {
    while (!condition()) {
      await once(this.changed, "changed");
    }
  }

  private serve(near: Socket): void {
    this.opened += 1;
    this.changed.emit("changed");
    if (this.refuses) {
      near.on("error", () => undefined);
      near.resetAndDestroy();
      return;
    }
    const [host, port] = this.broker.split(":");
    const far = connect(Number(port), host);
    this.pump(near, far, "toBroker");
    this.pump(far, near, "toClient");
  }

  private pump(from: Socket, to: Socket, way: Way): void {
    from.setNoDelay(true);
    this.open.add(from);
    // What comes later never passes what is held up.
    let passed = Promise.resolve();
    from.on("data", (data) => {
      if (way === "toBroker") {
        this.sent += data.toString("latin1");
      }
      if (this.swallowed.includes(way)) {
        this.lost += data.length;
        this.changed.emit("changed");
        return;
      }
      const at = performance.now() + (way === "toClient" ? this.delayMs : 0);
      passed = passed.then(async () => {
        const late = at - performance.now();
        if (late > 0) {
          await sleep(late);
        }
        if (way === "toClient") {
          await this.until(() => !this.holdsBack);
        }
        to.write(data);
      });
    });
    from.on("error", () => undefined);
    from.on("close", () => {
      this.open.delete(from);
      to.destroy();
    });
  }
}
