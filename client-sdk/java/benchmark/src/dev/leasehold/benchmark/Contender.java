package dev.leasehold.benchmark;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.Function;

/** One way to take locks, by a thread for each caller. */
record Contender(String name, Function<String, Pair> locks) {
    /** A lock of one caller. */
    interface Pair {
        /** Takes it, does the work, and gives it back. */
        void run(Runnable work) throws Exception;
    }

    /** Takes and gives back for so long: a lock for each caller, or one for all. */
    Visits round(int callers, double seconds, boolean isHot) throws Exception {
        Visits visits = new Visits(callers, seconds);
        CyclicBarrier begin = new CyclicBarrier(callers);
        ExecutorService pool = Executors.newFixedThreadPool(callers);
        List<Future<Void>> work = new ArrayList<>();
        for (int caller = 0; caller < callers; caller++) {
            int number = caller;
            Pair lock = locks.apply(isHot ? "bench/hot" : "bench/" + caller);
            work.add(pool.submit(() -> {
                begin.await();
                work(lock, number, visits, isHot, System.nanoTime() + (long) (seconds * 1e9));
                return null;
            }));
        }
        for (Future<Void> one : work) {
            one.get();
        }
        pool.shutdown();
        return visits;
    }

    private static void work(Pair lock, int caller, Visits visits, boolean isHot, long until) throws Exception {
        while (System.nanoTime() < until) {
            long asked = System.nanoTime();
            lock.run(() -> {
                if (isHot) {
                    visits.entered(caller, System.nanoTime() - asked);
                }
            });
            visits.paired(caller);
        }
    }
}
