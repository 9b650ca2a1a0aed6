package dev.leasehold;

import static dev.leasehold.support.Line.soon;
import static dev.leasehold.support.Line.waitsFor;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.error.WaitTimeoutException;
import dev.leasehold.support.Broker;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Virtual threads, all on one carrier: none of them keeps it while it waits. For a runtime that has them. */
@Tag("virtual-threads")
class VirtualThreadsTest {
    private static final int MANY = 500;

    /** The tests are compiled for Java 17, which cannot name them. */
    private static ExecutorService threads() throws ReflectiveOperationException {
        return (ExecutorService)
                Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
    }

    private static boolean isVirtual() throws ReflectiveOperationException {
        return (boolean) Thread.class.getMethod("isVirtual").invoke(Thread.currentThread());
    }

    @Test
    void manyTakeTurns() throws Exception {
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger overlaps = new AtomicInteger();
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            ExecutorService threads = threads();
            List<Future<Boolean>> all = new ArrayList<>();
            for (int one = 0; one < MANY; one++) {
                all.add(threads.submit(() -> {
                    try (Lease lease = client.acquire("a")) {
                        if (inside.incrementAndGet() != 1) {
                            overlaps.incrementAndGet();
                        }
                        Thread.yield();
                        inside.decrementAndGet();
                        return lease.isValid() && isVirtual();
                    }
                }));
            }
            for (Future<Boolean> one : all) {
                assertTrue(one.get(30, TimeUnit.SECONDS));
            }
            threads.shutdown();
        }
        assertEquals(0, overlaps.get());
    }

    @Test
    void whoWaitsKeepsNobodyElseFromWorking() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            Lease lease = client.acquire("a");
            ExecutorService threads = threads();
            Future<Lease> waits = threads.submit(() -> client.acquire("a"));
            Future<?> interrupted = threads.submit(() -> client.acquire("a"));
            waitsFor(client, "a", 2);
            CompletableFuture<Boolean> works = new CompletableFuture<>();
            threads.submit(() -> works.complete(lease.isValid()));
            assertTrue(soon(works));
            assertFalse(waits.isDone());
            interrupted.cancel(true);
            waitsFor(client, "a", 1);
            Future<Boolean> late = threads.submit(() -> {
                try {
                    client.lock("a").waitUpTo(Duration.ofMillis(100)).acquire();
                    return false;
                } catch (WaitTimeoutException e) {
                    return true;
                }
            });
            assertTrue(late.get(5, TimeUnit.SECONDS));
            lease.close();
            assertTrue(waits.get(5, TimeUnit.SECONDS).isValid());
            threads.shutdown();
        }
    }
}
