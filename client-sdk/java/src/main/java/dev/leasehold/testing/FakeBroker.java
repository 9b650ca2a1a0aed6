package dev.leasehold.testing;

import dev.leasehold.LeaseholdClient;
import dev.leasehold.LockState;
import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.Target;
import dev.leasehold.error.AcquireException;
import dev.leasehold.internal.AcquireCommand;
import dev.leasehold.internal.Backend;
import dev.leasehold.internal.CommandSender;
import dev.leasehold.internal.LeaseHandle;
import dev.leasehold.internal.LockName;
import dev.leasehold.internal.Worker;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;

/**
 * A fake broker in memory, for tests. Its clients and leases have the same types as those of a real broker.
 *
 * <p>Leases never expire, and {@code maxHold}, {@code lockDelay}, {@code atLeast} and {@code disconnectGrace} are
 * ignored: a lock is held until it is released or lost, and then free at once. The rest is as with a real broker: one
 * queue for each lock in strict order, fencing tokens that rise, shared locks, permits, set limits, several locks at
 * once and re-entry.
 */
public final class FakeBroker implements AutoCloseable {
    private final FakeLocks locks = new FakeLocks();
    private final Worker worker = new Worker("leasehold-fake", locks);

    /** Creates a fake broker whose locks are all free. */
    public FakeBroker() {
        worker.start();
    }

    /**
     * Returns a new client of this broker, which is connected.
     *
     * @param owner name of the client
     * @return the client, to be closed
     */
    public LeaseholdClient client(String owner) {
        return new FakeClient(new FakeBackend(), owner);
    }

    /**
     * Ends all leases that hold a lock, with all their locks. The next waiter is granted the lock at once. The holders
     * get {@link LostReason#STORE_LOST}.
     *
     * @param lock the lock
     * @return number of leases that were ended
     */
    public int lose(String lock) {
        return lose(Target.of(lock), new Loss(LostReason.STORE_LOST));
    }

    /**
     * Ends all leases that hold a lock, with all their locks. The next waiter is granted the lock at once.
     *
     * @param lock the lock
     * @param loss the cause that the holders get
     * @return number of leases that were ended
     */
    public int lose(Target lock, Loss loss) {
        return callInWorker(() -> locks.endLeases(name(lock), loss));
    }

    /**
     * Fails the next acquire of a lock with an error, as a failing broker does.
     *
     * @param lock the lock
     * @param error the error
     */
    public void refuse(String lock, AcquireException error) {
        callInWorker(() -> {
            locks.failNext(name(Target.of(lock)), error);
            return null;
        });
    }

    /**
     * Returns the number of holders of a lock.
     *
     * @param lock the lock
     * @return 0 if the lock is free
     */
    public int holderCount(String lock) {
        return callInWorker(() -> locks.holders(name(Target.of(lock))).size());
    }

    /**
     * Returns the number of calls that wait for a lock.
     *
     * @param lock the lock
     * @return 0 if there are none
     */
    public int queueLength(String lock) {
        return callInWorker(() -> locks.queueLength(name(Target.of(lock))));
    }

    /** Stops the thread of this broker. Close its clients before. */
    @Override
    public void close() {
        worker.post(worker::stop);
    }

    private static LockName name(Target lock) {
        return LockName.parse(lock.toString());
    }

    private <T> T callInWorker(Supplier<T> action) {
        CompletableFuture<T> result = new CompletableFuture<>();
        worker.post(() -> result.complete(action.get()));
        return result.join();
    }

    private static final class FakeClient extends LeaseholdClient {
        FakeClient(Backend backend, String owner) {
            super(backend, owner);
        }
    }

    /** Connection of one client to this broker. */
    private final class FakeBackend implements Backend, CommandSender {
        @Override
        public CompletableFuture<Void> connect() {
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public void acquire(AcquireCommand command) {
            worker.post(() -> locks.acquire(this, command, worker.now()));
        }

        @Override
        public void cancel(String requestId) {
            worker.post(() -> locks.cancel(requestId));
        }

        @Override
        public void release(LeaseHandle handle, CompletableFuture<Void> future) {
            worker.post(() -> locks.release(handle, future));
        }

        @Override
        public CompletableFuture<Optional<LockState>> getLockState(LockName lock) {
            CompletableFuture<Optional<LockState>> future = new CompletableFuture<>();
            worker.post(() -> locks.getLockState(this, lock, future));
            return future;
        }

        @Override
        public CompletableFuture<OptionalInt> setLimit(LockName lock, int limit) {
            CompletableFuture<OptionalInt> future = new CompletableFuture<>();
            worker.post(() -> locks.setLimit(this, lock, limit, future));
            return future;
        }

        @Override
        public CompletableFuture<Void> close() {
            CompletableFuture<Void> closed = new CompletableFuture<>();
            worker.post(() -> {
                locks.close(this);
                closed.complete(null);
            });
            return closed;
        }
    }
}
