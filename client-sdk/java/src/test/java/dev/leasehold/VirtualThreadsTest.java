package dev.leasehold;

import static dev.leasehold.support.Conditions.awaitQueueLength;
import static dev.leasehold.support.Conditions.awaitResult;
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

/**
 * Tests that virtual threads release their only carrier thread while they wait. They need a runtime with virtual
 * threads.
 */
@Tag("virtual-threads")
class VirtualThreadsTest {
    private static final int THREAD_COUNT = 500;

    /** Creates the executor by reflection, because the tests are compiled for Java 17, which has no virtual threads. */
    private static ExecutorService threads() throws ReflectiveOperationException {
        return (ExecutorService)
                Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
    }

    private static boolean isVirtual() throws ReflectiveOperationException {
        return (boolean) Thread.class.getMethod("isVirtual").invoke(Thread.currentThread());
    }

    @Test
    void manyVirtualThreadsNeverOverlap() throws Exception {
        AtomicInteger holderCount = new AtomicInteger();
        AtomicInteger overlaps = new AtomicInteger();
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            ExecutorService threads = threads();
            List<Future<Boolean>> results = new ArrayList<>();
            for (int number = 0; number < THREAD_COUNT; number++) {
                results.add(threads.submit(() -> {
                    try (Lease lease = client.acquire("a")) {
                        if (holderCount.incrementAndGet() != 1) {
                            overlaps.incrementAndGet();
                        }
                        Thread.yield();
                        holderCount.decrementAndGet();
                        return lease.isValid() && isVirtual();
                    }
                }));
            }
            for (Future<Boolean> result : results) {
                assertTrue(result.get(30, TimeUnit.SECONDS));
            }
            threads.shutdown();
        }
        assertEquals(0, overlaps.get());
    }

    @Test
    void aWaitingVirtualThreadDoesNotBlockOthers() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            Lease lease = client.acquire("a");
            ExecutorService threads = threads();
            Future<Lease> pending = threads.submit(() -> client.acquire("a"));
            Future<?> interrupted = threads.submit(() -> client.acquire("a"));
            awaitQueueLength(client, "a", 2);
            CompletableFuture<Boolean> otherTask = new CompletableFuture<>();
            threads.submit(() -> otherTask.complete(lease.isValid()));
            assertTrue(awaitResult(otherTask));
            assertFalse(pending.isDone());
            interrupted.cancel(true);
            awaitQueueLength(client, "a", 1);
            Future<Boolean> timedOut = threads.submit(() -> {
                try {
                    client.lock("a").waitUpTo(Duration.ofMillis(100)).acquire();
                    return false;
                } catch (WaitTimeoutException e) {
                    return true;
                }
            });
            assertTrue(timedOut.get(5, TimeUnit.SECONDS));
            lease.close();
            assertTrue(pending.get(5, TimeUnit.SECONDS).isValid());
            threads.shutdown();
        }
    }
}
