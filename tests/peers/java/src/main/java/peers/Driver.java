package peers;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.LongStream;

/** Peers in Java: Redisson's RLock and RFairLock, Curator's InterProcessMutex. See tests/peers/README.md. */
public final class Driver {
    private static final int MOST = 20_000;
    /** Number of concurrent acquires of locks that are then held. */
    private static final int AT_ONCE = 64;

    private final Peer peer;
    private final int count;
    private final long begin;
    private final long end;

    private Driver(Peer peer, int count, long begin, long end) {
        this.peer = peer;
        this.count = count;
        this.begin = begin;
        this.end = end;
    }

    public static void main(String[] args) throws Exception {
        Peer peer = Peer.open(args[0], args[1]);
        int count = Integer.parseInt(args[3]);
        long measured = Long.parseLong(args[5]);
        long begin = System.nanoTime() + Long.parseLong(args[4]) * 1_000_000;
        Driver driver = new Driver(peer, count, begin, begin + measured * 1_000_000);
        switch (args[2]) {
            case "pairs" -> driver.pairs();
            case "hot" -> driver.hot();
            case "idle" -> driver.idle(measured);
            case "hold" -> {
                peer.lock("crash").lock();
                System.out.println("held");
                Thread.sleep(Long.MAX_VALUE);
            }
            case "wait" -> {
                System.out.println("waiting");
                peer.lock("crash").lock();
                System.out.println("granted");
            }
            default -> throw new IllegalArgumentException(args[2]);
        }
        // Callers that still wait are abandoned.
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private void pairs() throws Exception {
        List<List<Long>> latencies = new ArrayList<>();
        for (int at = 0; at < count; at++) {
            latencies.add(new ArrayList<>());
        }
        List<Future<Void>> running = each(count, at -> {
            Peer.Lock lock = peer.lock("pairs-" + at);
            for (long sent = System.nanoTime(); sent < end; sent = System.nanoTime()) {
                lock.lock();
                lock.unlock();
                if (sent >= begin) {
                    latencies.get(at).add((System.nanoTime() - sent) / 1_000);
                }
            }
        });
        begins();
        for (Future<Void> one : running) {
            one.get();
        }
        List<Long> all = latencies.stream().flatMap(List::stream).toList();
        print(all.size(), all, new long[0], 0);
    }

    /** Measurements of the lock that all callers share. */
    private static final class Held {
        int last = -1;
        long released;
        long longest;
        final List<Long> latencies = new ArrayList<>();
    }

    private void hot() throws Exception {
        Held held = new Held();
        long[] counts = new long[count];
        List<Future<Void>> running = each(count, at -> {
            // The name is unique, so that a lock of an earlier run does not interfere.
            Peer.Lock lock = peer.lock("hot-" + ProcessHandle.current().pid());
            while (true) {
                long sent = System.nanoTime();
                lock.lock();
                synchronized (held) {
                    long granted = System.nanoTime();
                    if (granted >= begin && granted < end) {
                        if (held.last != at && held.last >= 0) {
                            held.latencies.add((granted - held.released) / 1_000);
                        }
                        counts[at]++;
                        held.longest = Math.max(held.longest, granted - sent);
                    }
                    held.last = at;
                    held.released = System.nanoTime();
                }
                lock.unlock();
            }
        });
        begins();
        Thread.sleep((end - begin) / 1_000_000);
        for (Future<Void> one : running) {
            if (one.isDone()) {
                one.get();
            }
        }
        synchronized (held) {
            print(held.latencies.size(), held.latencies, counts, held.longest / 1_000);
        }
    }

    private void idle(long measured) throws Exception {
        List<Future<Void>> running = each(AT_ONCE, at -> {
            for (int number = at; number < count; number += AT_ONCE) {
                peer.lock("idle-" + number).lock();
            }
        });
        for (Future<Void> one : running) {
            one.get();
        }
        System.out.println("begin");
        Thread.sleep(measured);
        print(count, List.of(), new long[0], 0);
    }

    private interface Caller {
        void run(int at) throws Exception;
    }

    /**
     * Runs each caller on its own thread, because Redisson and Curator identify holders by thread. All start together.
     */
    private static List<Future<Void>> each(int count, Caller caller) {
        ExecutorService threads = Executors.newFixedThreadPool(count);
        CountDownLatch started = new CountDownLatch(count);
        List<Future<Void>> running = new ArrayList<>();
        for (int at = 0; at < count; at++) {
            int number = at;
            running.add(threads.submit((Callable<Void>) () -> {
                started.countDown();
                started.await();
                caller.run(number);
                return null;
            }));
        }
        return running;
    }

    private void begins() throws InterruptedException {
        Thread.sleep(Math.max(0, (begin - System.nanoTime()) / 1_000_000));
        System.out.println("begin");
    }

    private static void print(int done, List<Long> latencies, long[] counts, long longestUs) {
        int kept = Math.min(latencies.size(), MOST);
        String some = LongStream.range(0, kept)
                .mapToObj(at -> latencies.get((int) (at * latencies.size() / kept)).toString())
                .collect(Collectors.joining(","));
        String each = LongStream.of(counts).mapToObj(Long::toString).collect(Collectors.joining(","));
        System.out.printf(
                "{\"done\":%d,\"latencies_us\":[%s],\"counts\":[%s],\"longest_wait_us\":%d}%n", done, some, each, longestUs);
    }
}
