// Types of redlock that the benchmark uses, because the package does not export its own types.

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
