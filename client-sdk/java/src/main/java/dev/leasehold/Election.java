package dev.leasehold;

import java.util.concurrent.CompletableFuture;

/** One leader for a job: whoever holds the lock of the job's name; the others wait for it in line. */
public final class Election {
    private final LeaseholdClient client;
    private final Target job;

    Election(LeaseholdClient client, Target job) {
        this.client = client;
        this.job = job;
    }

    /**
     * How to be a candidate with settings, a ttl or a reason; its {@code acquire} is {@link #campaign}.
     *
     * @return waits for ever
     */
    public LockRequest candidacy() {
        return client.lock(job).waitUpTo(LockRequest.FOREVER);
    }

    /**
     * Waits until this process leads, however long that takes. It leads as long as the lease is valid.
     *
     * @return to be closed
     * @throws InterruptedException as {@link LockRequest#acquire}, with all its other exceptions
     */
    public Lease campaign() throws InterruptedException {
        return candidacy().acquire();
    }

    /**
     * {@link #campaign} without a thread that waits.
     *
     * @return as {@link LockRequest#acquireAsync}
     */
    public CompletableFuture<Lease> campaignAsync() {
        return candidacy().acquireAsync();
    }

    /**
     * Watches who leads, without being a candidate.
     *
     * @return for one thread
     */
    public LeaderObserver observe() {
        return new LeaderObserver(client, job);
    }
}
