package dev.leasehold.internal;

import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/** A thread that runs jobs one after the other, and a periodic tick in between. */
public final class Worker {
    private static final Logger LOG = System.getLogger("dev.leasehold");
    /** Interval of ticks. The interval is short because no timer of Java runs while the machine is suspended. */
    private static final long TICK_INTERVAL = Durations.millisToNanos(50);
    /** Interval of ticks while nothing can expire. */
    private static final long IDLE_TICK_INTERVAL = Durations.millisToNanos(1_000);

    /** A handler of the periodic tick. */
    public interface TickHandler {
        /** Runs all actions that are due at time {@code now}. */
        void onTick(long now);

        /** Returns true if nothing can expire. */
        boolean isIdle();
    }

    private final LinkedBlockingQueue<Runnable> jobs = new LinkedBlockingQueue<>();
    /** Held while a thread runs jobs: by the worker's thread, and after its end by threads that post a job. */
    private final ReentrantLock runLock = new ReentrantLock();

    private final String name;
    private final TickHandler tickHandler;
    private volatile boolean isStopped;
    private long jobStartedAt = Clock.sendTime();

    public Worker(String name, TickHandler tickHandler) {
        this.name = name;
        this.tickHandler = tickHandler;
    }

    public void start() {
        Thread thread = new Thread(this::run, name);
        thread.setDaemon(true);
        thread.start();
    }

    /**
     * Returns the start time of the current job, as sending time: never later than the actual time. The clock is read
     * once for each job, because reading it opens a file.
     */
    long sendTime() {
        return jobStartedAt;
    }

    /** Returns the start time of the current job, as time of a check: at least the actual start time. */
    public long now() {
        return Clock.checkTime(jobStartedAt);
    }

    /** Adds a job. After the end of the thread, the calling thread runs the job. */
    public void post(Runnable job) {
        jobs.add(job);
        if (isStopped) {
            drain();
        }
    }

    /** Ends the thread after the current job. To be called by a job. */
    public void stop() {
        isStopped = true;
    }

    private void run() {
        runLock.lock();
        try {
            long lastTickAt = System.nanoTime();
            while (!isStopped) {
                long interval = tickHandler.isIdle() ? IDLE_TICK_INTERVAL : TICK_INTERVAL;
                Runnable job = pollJob(lastTickAt + interval - System.nanoTime());
                if (job != null) {
                    runJob(job);
                }
                if (System.nanoTime() - lastTickAt >= TICK_INTERVAL) {
                    lastTickAt = System.nanoTime();
                    runJob(() -> tickHandler.onTick(now()));
                }
            }
        } finally {
            runLock.unlock();
        }
        drain();
    }

    private Runnable pollJob(long timeout) {
        try {
            return jobs.poll(Math.max(0, timeout), TimeUnit.NANOSECONDS);
        } catch (InterruptedException e) {
            // No code of the program has a reference to this thread. An interrupt is ignored, so that leases are still
            // renewed.
            return null;
        }
    }

    private void drain() {
        runLock.lock();
        try {
            for (Runnable job = jobs.poll(); job != null; job = jobs.poll()) {
                runJob(job);
            }
        } finally {
            runLock.unlock();
        }
    }

    private void runJob(Runnable job) {
        jobStartedAt = Clock.sendTime();
        try {
            job.run();
        } catch (Throwable error) {
            // The failure of one call must not end the leases of the others.
            LOG.log(Level.ERROR, "internal error in the client thread", error);
        }
    }
}
