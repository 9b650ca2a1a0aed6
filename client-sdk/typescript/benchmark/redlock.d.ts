// What the benchmark uses of redlock, whose own types its package does not export.

declare module "redlock" {
  import type { Redis } from "ioredis";

  interface Settings {
    retryCount: number;
  }

  export default class Redlock {
    constructor(clients: Iterable<Redis>, settings: Settings);
    acquire(resources: string[], durationMs: number): Promise<{ release(): Promise<unknown> }>;
  }
}
