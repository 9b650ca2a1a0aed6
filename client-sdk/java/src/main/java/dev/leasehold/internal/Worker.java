package dev.leasehold.internal;

import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/** One thread that does one thing after the other, and looks at the time in between. */
public final class Worker {
    private static final Logger LOG = System.getLogger("dev.leasehold");
    /** How often the time is looked at. Not less often: no timer runs through a suspend. */
    private static final long TICK = Times.millis(50);
    /** The same while there is nothing that could run out. */
    private static final long IDLE_TICK = Times.millis(1_000);

    /** What is done now and then. */
    public interface Ticking {
        /** Looks at the time. */
        void tick(long now);

        /** Whether nothing can run out. */
        boolean isIdle();
    }

    private final LinkedBlockingQueue<Runnable> jobs = new LinkedBlockingQueue<>();
    /** Whoever does jobs: the thread, and when that has ended whoever has another one. */
    private final ReentrantLock running = new ReentrantLock();

    private final String name;
    private final Ticking ticking;
    private volatile boolean isOver;
    private long read = Clock.sent();

    public Worker(String name, Ticking ticking) {
        this.name = name;
        this.ticking = ticking;
    }

    public void start() {
        Thread thread = new Thread(this::run, name);
        thread.setDaemon(true);
        thread.start();
    }

    /** When the present job was begun, as the time of what it sends. One reading for each job, as it costs a file. */
    long sent() {
        return read;
    }

    /** When the present job was begun, as the time of what it asks. */
    public long now() {
        return Clock.asked(read);
    }

    /** Has the thread do something. */
    public void post(Runnable job) {
        jobs.add(job);
        if (isOver) {
            drain();
        }
    }

    /** Ends the thread after what it has to do. To be called by a job. */
    public void stop() {
        isOver = true;
    }

    private void run() {
        running.lock();
        try {
            long ticked = System.nanoTime();
            while (!isOver) {
                long pause = ticking.isIdle() ? IDLE_TICK : TICK;
                Runnable job = next(ticked + pause - System.nanoTime());
                if (job != null) {
                    begin(job);
                }
                if (System.nanoTime() - ticked >= TICK) {
                    ticked = System.nanoTime();
                    begin(() -> ticking.tick(now()));
                }
            }
        } finally {
            running.unlock();
        }
        drain();
    }

    private Runnable next(long pause) {
        try {
            return jobs.poll(Math.max(0, pause), TimeUnit.NANOSECONDS);
        } catch (InterruptedException e) {
            // Nobody has this thread to interrupt it; leases are kept all the same.
            return null;
        }
    }

    private void drain() {
        running.lock();
        try {
            for (Runnable job = jobs.poll(); job != null; job = jobs.poll()) {
                begin(job);
            }
        } finally {
            running.unlock();
        }
    }

    private void begin(Runnable job) {
        read = Clock.sent();
        try {
            job.run();
        } catch (Throwable fault) {
            // One call that fails must not end the leases of the others.
            LOG.log(Level.ERROR, "a fault of the client", fault);
        }
    }
}
