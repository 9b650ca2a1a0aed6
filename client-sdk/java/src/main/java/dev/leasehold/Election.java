package dev.leasehold;

import java.util.concurrent.CompletableFuture;

/**
 * An election of one leader for a job. The leader is the holder of the lock with the job's name; the other candidates
 * wait in the queue of the lock.
 */
public final class Election {
    private final LeaseholdClient client;
    private final Target job;

    Election(LeaseholdClient client, Target job) {
        this.client = client;
        this.job = job;
    }

    /**
     * Returns a request for leadership, which accepts settings such as a ttl or a reason. Its {@code acquire} is
     * {@link #campaign}.
     *
     * @return a request with an unlimited wait
     */
    public LockRequest candidacy() {
        return client.lock(job).waitUpTo(LockRequest.FOREVER);
    }

    /**
     * Blocks until this process is the leader, without a limit. This process is the leader while the lease is valid.
     *
     * @return the lease, to be closed
     * @throws InterruptedException as {@link LockRequest#acquire}, with all its other exceptions
     */
    public Lease campaign() throws InterruptedException {
        return candidacy().acquire();
    }

    /**
     * Requests leadership like {@link #campaign}, without blocking the calling thread.
     *
     * @return as {@link LockRequest#acquireAsync}
     */
    public CompletableFuture<Lease> campaignAsync() {
        return candidacy().acquireAsync();
    }

    /**
     * Creates an observer of the leader, which does not make this process a candidate.
     *
     * @return an observer for use in one thread
     */
    public LeaderObserver observe() {
        return new LeaderObserver(client, job);
    }
}
