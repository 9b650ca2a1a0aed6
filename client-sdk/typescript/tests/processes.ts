// Real brokers, a real Redis and other programs, as processes that the test ends itself.

import assert from "node:assert/strict";
import type { ChildProcessByStdio } from "node:child_process";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";

/** The folder of this package. */
export const HOME = fileURLToPath(new URL("../..", import.meta.url));
const START_LIMIT_MS = 20_000;
/**
 * An empty store of another kind may have lost leases, so the broker would grant nothing at first. A broker that does
 * not wait for its store ends if the store does not answer in time, as it may on a busy machine.
 */
const PATIENT = ["--trust-empty-store", "--wait-for-store"];

/** A port that nobody listens on. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  assert(address !== null && typeof address === "object");
  server.close();
  await once(server, "close");
  return address.port;
}

function serverBinary(): string {
  const path = process.env["LEASEHOLD_SERVER"] ?? join(HOME, "../../target/debug/leasehold-server");
  assert(existsSync(path), `${path} is missing: cargo build -p leasehold-server, or set LEASEHOLD_SERVER`);
  return path;
}

/** One process, whose lines of output can be awaited. */
export class Program {
  readonly lines: string[] = [];
  private readonly child: ChildProcessByStdio<Writable, Readable, null>;
  private readonly ending: Promise<number | null>;
  private heard: (() => void)[] = [];

  constructor(command: readonly string[], environment: Record<string, string> = {}) {
    // It ignores no signal, though whoever runs the tests may.
    this.child = spawn("env", ["--default-signal", ...command], {
      stdio: ["pipe", "pipe", "ignore"],
      env: { ...process.env, ...environment },
    });
    this.ending = once(this.child, "close").then(([code]) => code as number | null);
    void this.ending.then(() => {
      this.tell();
    });
    createInterface({ input: this.child.stdout }).on("line", (line) => {
      this.lines.push(line);
      this.tell();
    });
  }

  get pid(): number {
    assert(this.child.pid !== undefined);
    return this.child.pid;
  }

  /** Waits for a line with the pattern. */
  async line(pattern: RegExp): Promise<string> {
    const late = AbortSignal.timeout(START_LIMIT_MS);
    for (;;) {
      const found = this.lines.find((line) => pattern.test(line));
      if (found !== undefined) {
        return found;
      }
      assert(this.child.exitCode === null && !late.aborted, `no ${String(pattern)} in ${this.lines.join("\n")}`);
      await new Promise<void>((resolve) => {
        this.heard.push(resolve);
        late.addEventListener("abort", () => {
          resolve();
        });
      });
    }
  }

  say(line: string): void {
    this.child.stdin.write(`${line}\n`);
  }

  /** Ends its input. */
  close(): void {
    this.child.stdin.end();
  }

  signal(name: NodeJS.Signals): void {
    process.kill(this.pid, name);
  }

  /** Stops it; returns once it stands still. */
  pause(): void {
    this.signal("SIGSTOP");
    while (this.state() !== "T");
  }

  resume(): void {
    this.signal("SIGCONT");
  }

  /** Waits for its end; its exit code. */
  ended(): Promise<number | null> {
    return this.ending;
  }

  async kill(): Promise<void> {
    if (this.child.exitCode === null && this.child.signalCode === null) {
      this.signal("SIGKILL");
    }
    await this.ending;
  }

  private state(): string {
    const stat = readFileSync(`/proc/${String(this.pid)}/stat`, "utf8");
    return stat.slice(stat.lastIndexOf(")") + 2)[0] ?? "";
  }

  private tell(): void {
    const { heard } = this;
    this.heard = [];
    for (const resolve of heard) {
      resolve();
    }
  }
}

/** A program of Node's, in this test or as a file. */
export function nodeProgram(t: TestContext, file: string, ...words: string[]): Program {
  const program = new Program([process.execPath, join(HOME, "build", file), ...words]);
  t.after(() => program.kill());
  return program;
}

/** One broker on a store; on the same port when it is started again. */
export class Broker {
  private constructor(
    private readonly store: string,
    private readonly port: number,
    public program: Program,
  ) {}

  /** Starts one that ends with the test. */
  static async start(t: TestContext, store = "memory"): Promise<Broker> {
    const broker = await Broker.free(store);
    t.after(() => broker.kill());
    return broker;
  }

  /** Starts one that somebody else ends. */
  static async free(store = "memory"): Promise<Broker> {
    const port = await freePort();
    return new Broker(store, port, await begin(store, port));
  }

  get addr(): string {
    return `127.0.0.1:${String(this.port)}`;
  }

  get url(): string {
    return `http://${this.addr}`;
  }

  kill(): Promise<void> {
    return this.program.kill();
  }

  /** Starts it again after its end. */
  async restart(): Promise<void> {
    await this.kill();
    this.program = await begin(this.store, this.port);
  }
}

async function begin(store: string, port: number): Promise<Program> {
  const how = store === "memory" ? ["dev"] : ["serve", "--store", store, ...PATIENT];
  const where = ["--listen", `127.0.0.1:${String(port)}`, "--admin-listen", "127.0.0.1:0", "--log", "off"];
  const program = new Program([serverBinary(), ...how, ...where]);
  await program.line(/^listening on /);
  return program;
}

/** One redis-server without persistence, on a port and in a folder of its own. */
export class Redis {
  private constructor(
    readonly port: number,
    private readonly dir: string,
    readonly program: Program,
  ) {}

  /** Starts one that ends with the test. */
  static async start(t: TestContext): Promise<Redis> {
    const redis = await Redis.free();
    t.after(() => redis.kill());
    return redis;
  }

  /** Starts one that somebody else ends. */
  static async free(): Promise<Redis> {
    const port = await freePort();
    const dir = mkdtempSync(join(tmpdir(), "leasehold-redis-"));
    const where = ["--port", String(port), "--bind", "127.0.0.1", "--save", "", "--dir", dir];
    const program = new Program([process.env["STORE_SERVER"] ?? "redis-server", ...where]);
    await program.line(/Ready to accept connections/);
    return new Redis(port, dir, program);
  }

  /** As a broker's store. */
  get url(): string {
    return `redis://127.0.0.1:${String(this.port)}/0`;
  }

  /** Runs a command by hand. */
  async command(...words: string[]): Promise<string> {
    const socket = connect(this.port, "127.0.0.1");
    const parts = words.map((word) => `$${String(word.length)}\r\n${word}\r\n`);
    socket.write(`*${String(words.length)}\r\n${parts.join("")}`);
    const [answer] = (await once(socket, "data")) as [Buffer];
    socket.destroy();
    return answer.toString();
  }

  async kill(): Promise<void> {
    await this.program.kill();
    rmSync(this.dir, { recursive: true, force: true });
  }
}
