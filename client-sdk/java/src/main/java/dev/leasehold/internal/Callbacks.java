package dev.leasehold.internal;

import java.util.concurrent.Executor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** Executor of the program's callbacks. They may block without delaying heartbeats. */
public final class Callbacks {
    /** A pool of daemon threads without an upper bound; an idle thread ends after 10 s. */
    public static final Executor EXECUTOR =
            new ThreadPoolExecutor(0, Integer.MAX_VALUE, 10, TimeUnit.SECONDS, new SynchronousQueue<>(), job -> {
                Thread thread = new Thread(job, "leasehold-callback");
                thread.setDaemon(true);
                return thread;
            });

    private Callbacks() {}
}
