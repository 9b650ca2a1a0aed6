package dev.leasehold;

import dev.leasehold.error.StoreRecoveringException;
import dev.leasehold.error.UnavailableException;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/** An observer of the leader of an election. Not thread-safe: use each observer in one thread. */
public final class LeaderObserver {
    private static final long POLL_INTERVAL_MILLIS = 1_000;

    private final LeaseholdClient client;
    private final Target job;
    /** Lease id of the leader that was returned last: empty if there was no leader, null before the first call. */
    private Optional<String> lastLeaseId;

    LeaderObserver(LeaseholdClient client, Target job) {
        this.client = client;
        this.job = job;
    }

    /**
     * Returns the current leader at the first call; later calls block until the leader changes. The observer polls
     * about once a second, and continues to poll while no broker answers. A change is therefore reported late, and two
     * changes within a second may be reported as one. Never rely on the result as if it were a lock.
     *
     * @return empty while there is no leader
     * @throws dev.leasehold.error.AcquireException if the request fails for another reason than an unavailable broker
     *     or a recovering store
     * @throws InterruptedException if the thread is interrupted
     */
    public Optional<Holder> next() throws InterruptedException {
        boolean isFirst = lastLeaseId == null;
        while (true) {
            if (!isFirst) {
                TimeUnit.MILLISECONDS.sleep(ThreadLocalRandom.current()
                        .nextLong(POLL_INTERVAL_MILLIS * 3 / 4, POLL_INTERVAL_MILLIS * 5 / 4));
            }
            isFirst = false;
            try {
                List<Holder> holders = client.get(job).map(LockState::holders).orElse(List.of());
                Optional<Holder> leader = holders.stream().findFirst();
                Optional<String> leaseId = leader.map(Holder::leaseId);
                if (!leaseId.equals(lastLeaseId)) {
                    lastLeaseId = leaseId;
                    return leader;
                }
            } catch (UnavailableException | StoreRecoveringException e) {
                // The next poll retries.
            }
        }
    }
}
