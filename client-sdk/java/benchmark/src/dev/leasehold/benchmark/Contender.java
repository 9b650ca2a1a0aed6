package dev.leasehold.benchmark;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.Function;

/** A lock library under test, used by one thread for each caller. */
record Contender(String name, Function<String, BenchmarkLock> locks) {
    /** A lock of one caller, which is acquired and released in pairs. */
    interface BenchmarkLock {
        /** Acquires the lock, runs the work, and releases the lock. */
        void runLocked(Runnable work) throws Exception;
    }

    /** Acquires and releases locks for {@code seconds}: a separate lock for each caller, or one lock for all. */
    RoundResult runRound(int callers, double seconds, boolean isShared) throws Exception {
        RoundResult roundResult = new RoundResult(callers, seconds);
        CyclicBarrier startBarrier = new CyclicBarrier(callers);
        ExecutorService pool = Executors.newFixedThreadPool(callers);
        List<Future<Void>> work = new ArrayList<>();
        for (int caller = 0; caller < callers; caller++) {
            int number = caller;
            BenchmarkLock lock = locks.apply(isShared ? "bench/hot" : "bench/" + caller);
            work.add(pool.submit(() -> {
                startBarrier.await();
                runCaller(lock, number, roundResult, isShared, System.nanoTime() + (long) (seconds * 1e9));
                return null;
            }));
        }
        for (Future<Void> result : work) {
            result.get();
        }
        pool.shutdown();
        return roundResult;
    }

    private static void runCaller(
            BenchmarkLock lock, int caller, RoundResult roundResult, boolean isShared, long deadline) throws Exception {
        while (System.nanoTime() < deadline) {
            long requestedAt = System.nanoTime();
            lock.runLocked(() -> {
                if (isShared) {
                    roundResult.recordAcquire(caller, System.nanoTime() - requestedAt);
                }
            });
            roundResult.recordPair(caller);
        }
    }
}
