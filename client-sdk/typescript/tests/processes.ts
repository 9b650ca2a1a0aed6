// Brokers, Redis servers and other programs as child processes of a test.

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

/** Folder of this package. */
export const HOME = fileURLToPath(new URL("../..", import.meta.url));
const START_TIMEOUT_MS = 20_000;
/**
 * Options of a broker on Redis. An empty Redis server may have lost leases, so the broker would grant nothing at first.
 * Without `--wait-for-store` the broker exits if the store does not answer in time, as it may on a busy machine.
 */
const REDIS_STORE_OPTIONS = ["--trust-empty-store", "--wait-for-store"];

/** Returns an unused port. */
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

/** A child process whose lines of output can be awaited. */
export class Program {
  readonly lines: string[] = [];
  private readonly child: ChildProcessByStdio<Writable, Readable, null>;
  private readonly exitCode: Promise<number | null>;
  private lineListeners: (() => void)[] = [];

  constructor(command: readonly string[], environment: Record<string, string> = {}) {
    // The child process has default signal handling, even if the parent of the test ignores signals.
    this.child = spawn("env", ["--default-signal", ...command], {
      stdio: ["pipe", "pipe", "ignore"],
      env: { ...process.env, ...environment },
    });
    this.exitCode = once(this.child, "close").then(([code]) => code as number | null);
    void this.exitCode.then(() => {
      this.notifyListeners();
    });
    createInterface({ input: this.child.stdout }).on("line", (line) => {
      this.lines.push(line);
      this.notifyListeners();
    });
  }

  get pid(): number {
    assert(this.child.pid !== undefined);
    return this.child.pid;
  }

  /** Waits for a line that matches the pattern. */
  async waitForLine(pattern: RegExp): Promise<string> {
    const timeout = AbortSignal.timeout(START_TIMEOUT_MS);
    for (;;) {
      const match = this.lines.find((line) => pattern.test(line));
      if (match !== undefined) {
        return match;
      }
      assert(this.child.exitCode === null && !timeout.aborted, `no ${String(pattern)} in ${this.lines.join("\n")}`);
      await new Promise<void>((resolve) => {
        this.lineListeners.push(resolve);
        timeout.addEventListener("abort", () => {
          resolve();
        });
      });
    }
  }

  writeLine(line: string): void {
    this.child.stdin.write(`${line}\n`);
  }

  /** Closes the standard input of the process. */
  closeInput(): void {
    this.child.stdin.end();
  }

  signal(name: NodeJS.Signals): void {
    process.kill(this.pid, name);
  }

  /** Sends SIGSTOP, and returns once the process has stopped. */
  pause(): void {
    this.signal("SIGSTOP");
    while (this.state() !== "T");
  }

  resume(): void {
    this.signal("SIGCONT");
  }

  /** Waits for the end of the process, and returns its exit code. */
  waitForExit(): Promise<number | null> {
    return this.exitCode;
  }

  async kill(): Promise<void> {
    if (this.child.exitCode === null && this.child.signalCode === null) {
      this.signal("SIGKILL");
    }
    await this.exitCode;
  }

  private state(): string {
    const stat = readFileSync(`/proc/${String(this.pid)}/stat`, "utf8");
    return stat.slice(stat.lastIndexOf(")") + 2)[0] ?? "";
  }

  private notifyListeners(): void {
    const { lineListeners } = this;
    this.lineListeners = [];
    for (const resolve of lineListeners) {
      resolve();
    }
  }
}

/** Starts a compiled script of this package with Node. The process ends with the test. */
export function nodeProgram(t: TestContext, file: string, ...args: string[]): Program {
  const program = new Program([process.execPath, join(HOME, "build", file), ...args]);
  t.after(() => program.kill());
  return program;
}

/** A broker on a store. A restart uses the same port. */
export class Broker {
  private constructor(
    private readonly store: string,
    private readonly port: number,
    public program: Program,
  ) {}

  /** Starts a broker that ends with the test. */
  static async start(t: TestContext, store = "memory"): Promise<Broker> {
    const broker = await Broker.spawn(store);
    t.after(() => broker.kill());
    return broker;
  }

  /** Starts a broker that the caller must kill. */
  static async spawn(store = "memory"): Promise<Broker> {
    const port = await freePort();
    return new Broker(store, port, await startBroker(store, port));
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

  /** Kills the broker if it runs, and starts it again. */
  async restart(): Promise<void> {
    await this.kill();
    this.program = await startBroker(this.store, this.port);
  }
}

async function startBroker(store: string, port: number): Promise<Program> {
  const command = store === "memory" ? ["dev"] : ["serve", "--store", store, ...REDIS_STORE_OPTIONS];
  const options = ["--listen", `127.0.0.1:${String(port)}`, "--admin-listen", "127.0.0.1:0", "--log", "off"];
  const program = new Program([serverBinary(), ...command, ...options]);
  await program.waitForLine(/^listening on /);
  return program;
}

/** A redis-server without persistence, with its own port and folder. */
export class Redis {
  private constructor(
    readonly port: number,
    private readonly dir: string,
    readonly program: Program,
  ) {}

  /** Starts a server that ends with the test. */
  static async start(t: TestContext): Promise<Redis> {
    const redis = await Redis.spawn();
    t.after(() => redis.kill());
    return redis;
  }

  /** Starts a server that the caller must kill. */
  static async spawn(): Promise<Redis> {
    const port = await freePort();
    const dir = mkdtempSync(join(tmpdir(), "leasehold-redis-"));
    const options = ["--port", String(port), "--bind", "127.0.0.1", "--save", "", "--dir", dir];
    const program = new Program([process.env["STORE_SERVER"] ?? "redis-server", ...options]);
    await program.waitForLine(/Ready to accept connections/);
    return new Redis(port, dir, program);
  }

  /** URL of the server as the store of a broker. */
  get url(): string {
    return `redis://127.0.0.1:${String(this.port)}/0`;
  }

  /** Sends a command to the server, and returns its raw reply. */
  async command(...args: string[]): Promise<string> {
    const socket = connect(this.port, "127.0.0.1");
    const bulkStrings = args.map((arg) => `$${String(arg.length)}\r\n${arg}\r\n`);
    socket.write(`*${String(args.length)}\r\n${bulkStrings.join("")}`);
    const [reply] = (await once(socket, "data")) as [Buffer];
    socket.destroy();
    return reply.toString();
  }

  async kill(): Promise<void> {
    await this.program.kill();
    rmSync(this.dir, { recursive: true, force: true });
  }
}
