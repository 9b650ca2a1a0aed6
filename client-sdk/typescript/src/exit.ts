// Gives everything back at the end of the process: the next in line need not wait for the ttl.

/** Begins an end; what it returns waits for that, without the event loop. */
export type CloseNow = () => () => void;

/** What is done when the process ends. */
class ExitHook {
  private readonly all = new Set<CloseNow>();
  private readonly run = (): void => {
    // All begin before any is waited for.
    const waits = [...this.all].map((closeNow) => closeNow());
    for (const wait of waits) {
      wait();
    }
  };

  add(closeNow: CloseNow): void {
    if (this.all.size === 0) {
      process.on("exit", this.run);
    }
    this.all.add(closeNow);
  }

  delete(closeNow: CloseNow): void {
    if (this.all.delete(closeNow) && this.all.size === 0) {
      process.off("exit", this.run);
    }
  }
}

/** One for all clients. */
export const exitHook = new ExitHook();
