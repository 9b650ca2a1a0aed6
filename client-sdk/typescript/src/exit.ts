// Releases all leases when the process exits, so that the next waiter need not wait for the TTL.

/** Starts closing a client. The returned function blocks, without the event loop, until the client has closed. */
export type StartClose = () => () => void;

/** The handler of the process event `exit`, registered while at least one client is open. */
class ExitHook {
  private readonly openClients = new Set<StartClose>();
  private readonly closeAll = (): void => {
    // All clients start to close before the first one is waited for.
    const waitFunctions = [...this.openClients].map((startClose) => startClose());
    for (const waitUntilClosed of waitFunctions) {
      waitUntilClosed();
    }
  };

  add(startClose: StartClose): void {
    if (this.openClients.size === 0) {
      process.on("exit", this.closeAll);
    }
    this.openClients.add(startClose);
  }

  delete(startClose: StartClose): void {
    if (this.openClients.delete(startClose) && this.openClients.size === 0) {
      process.off("exit", this.closeAll);
    }
  }
}

/** The exit handler that all clients share. */
export const exitHook = new ExitHook();
