package dev.leasehold;

import static dev.leasehold.support.Line.holderOf;
import static dev.leasehold.support.Line.takes;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.support.Broker;
import dev.leasehold.support.Proxy;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Test;

/** Calls that are given up at any moment leave nothing behind. */
class CancelTest {
    private static final int ROUNDS = 300;
    /** From before the call is sent to after its grant, on a busy machine. */
    private static final long WINDOW_NANOS = 3_000_000;
    /** Far longer than what the tests wait for a lock. */
    private static final Duration TTL = Duration.ofSeconds(60);

    private static void pause() {
        LockSupport.parkNanos(ThreadLocalRandom.current().nextLong(WINDOW_NANOS));
    }

    @Test
    void aFutureIsCancelledAtAnyMoment() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url());
                LeaseholdClient other = LeaseholdClient.connect(broker.url())) {
            int granted = 0;
            for (int round = 0; round < ROUNDS; round++) {
                CompletableFuture<Lease> call = client.lock("a").ttl(TTL).acquireAsync();
                pause();
                if (!call.cancel(true)) {
                    granted++;
                    call.join().close();
                }
                takes(other, "a");
            }
            assertTrue(granted > 0 && granted < ROUNDS, "not around the grant: " + granted);
        }
    }

    @Test
    void aThreadIsInterruptedAtAnyMoment() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url());
                LeaseholdClient other = LeaseholdClient.connect(broker.url())) {
            int granted = 0;
            for (int round = 0; round < ROUNDS; round++) {
                AtomicReference<Lease> taken = new AtomicReference<>();
                CountDownLatch begins = new CountDownLatch(1);
                Thread thread = new Thread(() -> {
                    begins.countDown();
                    try {
                        taken.set(client.lock("a").ttl(TTL).acquire());
                    } catch (InterruptedException e) {
                        // It has nothing.
                    }
                });
                thread.start();
                begins.await();
                pause();
                thread.interrupt();
                thread.join();
                if (taken.get() != null) {
                    granted++;
                    taken.get().close();
                }
                takes(other, "a");
            }
            assertTrue(granted > 0 && granted < ROUNDS, "not around the grant: " + granted);
        }
    }

    @Test
    void aGrantThatCrossesACancelIsGivenBack() throws Exception {
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url());
                LeaseholdClient other = LeaseholdClient.connect(broker.url())) {
            int opened = proxy.opened();
            proxy.holdBack(true);
            CompletableFuture<Lease> call = client.lock("a").ttl(TTL).acquireAsync();
            holderOf(other, "a");
            assertTrue(call.cancel(true), "the client does not know of its grant");
            proxy.holdBack(false);
            takes(other, "a");
            assertEquals(opened, proxy.opened(), "on the same connection");
        }
    }
}
