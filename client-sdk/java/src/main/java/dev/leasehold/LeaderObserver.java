package dev.leasehold;

import dev.leasehold.error.StoreRecoveringException;
import dev.leasehold.error.UnavailableException;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/** Watches who leads. For one thread. */
public final class LeaderObserver {
    private static final long LOOK_EVERY_MILLIS = 1_000;

    private final LeaseholdClient client;
    private final Target job;
    /** The lease of the leader that was told, empty for nobody; null before that. */
    private Optional<String> told;

    LeaderObserver(LeaseholdClient client, Target job) {
        this.client = client;
        this.job = job;
    }

    /**
     * The leader at the first call, then the next one when that changes. It looks about once a second, and again while
     * no broker answers: a change is heard of late, and two quick ones perhaps as one. Never act on it as if it were a
     * lock.
     *
     * @return empty while nobody leads
     * @throws dev.leasehold.error.AcquireException if it cannot be told for another reason than a broker that is away
     * @throws InterruptedException if the thread is interrupted
     */
    public Optional<Holder> next() throws InterruptedException {
        boolean isFirst = told == null;
        while (true) {
            if (!isFirst) {
                TimeUnit.MILLISECONDS.sleep(
                        ThreadLocalRandom.current().nextLong(LOOK_EVERY_MILLIS * 3 / 4, LOOK_EVERY_MILLIS * 5 / 4));
            }
            isFirst = false;
            try {
                List<Holder> holders = client.get(job).map(LockState::holders).orElse(List.of());
                Optional<Holder> leader = holders.stream().findFirst();
                Optional<String> lease = leader.map(Holder::leaseId);
                if (!lease.equals(told)) {
                    told = lease;
                    return leader;
                }
            } catch (UnavailableException | StoreRecoveringException e) {
                // It is looked again.
            }
        }
    }
}
