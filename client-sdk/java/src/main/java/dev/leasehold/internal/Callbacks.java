package dev.leasehold.internal;

import java.util.concurrent.Executor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** Threads for what programs want to be told: they may block, and no heartbeat waits for them. */
public final class Callbacks {
    /** As many threads as are busy at a time. */
    public static final Executor EXECUTOR =
            new ThreadPoolExecutor(0, Integer.MAX_VALUE, 10, TimeUnit.SECONDS, new SynchronousQueue<>(), job -> {
                Thread thread = new Thread(job, "leasehold-callback");
                thread.setDaemon(true);
                return thread;
            });

    private Callbacks() {}
}
