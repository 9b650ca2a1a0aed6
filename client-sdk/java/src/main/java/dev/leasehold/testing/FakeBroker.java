package dev.leasehold.testing;

import dev.leasehold.LeaseholdClient;
import dev.leasehold.LockState;
import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.Target;
import dev.leasehold.error.AcquireException;
import dev.leasehold.internal.Ask;
import dev.leasehold.internal.Backend;
import dev.leasehold.internal.Grip;
import dev.leasehold.internal.LockName;
import dev.leasehold.internal.Orders;
import dev.leasehold.internal.Worker;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;

/**
 * A broker in memory whose locks are all free. Its clients are those of a real one, and so are their leases.
 *
 * <p>Leases never run out here, and there is no {@code maxHold}, {@code lockDelay} or {@code disconnectGrace}: a lock
 * is held until it is given back or lost. Everything else is as with a broker: one line for each lock in strict order,
 * fencing tokens that rise, shared locks, permits, several locks at once and re-entry.
 */
public final class FakeBroker implements AutoCloseable {
    private final FakeLocks locks = new FakeLocks();
    private final Worker worker = new Worker("leasehold-fake", locks);

    /** All locks are free. */
    public FakeBroker() {
        worker.start();
    }

    /**
     * A client of it.
     *
     * @param owner its name
     * @return connected
     */
    public LeaseholdClient client(String owner) {
        return new FakeClient(new Site(), owner);
    }

    /**
     * Takes a lock away from everybody who holds it, with all the locks of their leases. The next in line gets it at
     * once.
     *
     * @param lock the lock
     * @return how many leases are over
     */
    public int lose(String lock) {
        return lose(Target.of(lock), new Loss(LostReason.STORE_LOST));
    }

    /**
     * The same, for a reason.
     *
     * @param lock the lock
     * @param loss what holders are told
     * @return how many leases are over
     */
    public int lose(Target lock, Loss loss) {
        return ask(() -> locks.lose(name(lock), loss));
    }

    /**
     * Answers the next call for a lock with an error, as a broker in trouble does.
     *
     * @param lock the lock
     * @param error the answer
     */
    public void refuse(String lock, AcquireException error) {
        ask(() -> {
            locks.refuseNext(name(Target.of(lock)), error);
            return null;
        });
    }

    /**
     * How many hold a lock.
     *
     * @param lock the lock
     * @return 0 if it is free
     */
    public int holderCount(String lock) {
        return ask(() -> locks.holders(name(Target.of(lock))).size());
    }

    /**
     * How many calls wait for a lock.
     *
     * @param lock the lock
     * @return 0 if nobody waits
     */
    public int queueLength(String lock) {
        return ask(() -> locks.queueLength(name(Target.of(lock))));
    }

    /** Ends its thread. Its clients are to be closed before. */
    @Override
    public void close() {
        worker.post(worker::stop);
    }

    private static LockName name(Target lock) {
        return LockName.parse(lock.toString());
    }

    private <T> T ask(Supplier<T> what) {
        CompletableFuture<T> answer = new CompletableFuture<>();
        worker.post(() -> answer.complete(what.get()));
        return answer.join();
    }

    private static final class FakeClient extends LeaseholdClient {
        FakeClient(Backend backend, String owner) {
            super(backend, owner);
        }
    }

    /** One client's way to the broker. */
    private final class Site implements Backend, Orders {
        @Override
        public CompletableFuture<Void> connect() {
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public void acquire(Ask ask) {
            worker.post(() -> locks.acquire(this, ask, worker.now()));
        }

        @Override
        public void cancel(String requestId) {
            worker.post(() -> locks.cancel(requestId));
        }

        @Override
        public void release(Grip grip, CompletableFuture<Void> answer) {
            worker.post(() -> locks.release(grip, answer));
        }

        @Override
        public CompletableFuture<Optional<LockState>> look(LockName lock) {
            CompletableFuture<Optional<LockState>> told = new CompletableFuture<>();
            worker.post(() -> locks.look(this, lock, told));
            return told;
        }

        @Override
        public CompletableFuture<Void> close() {
            CompletableFuture<Void> done = new CompletableFuture<>();
            worker.post(() -> {
                locks.close(this);
                done.complete(null);
            });
            return done;
        }
    }
}
