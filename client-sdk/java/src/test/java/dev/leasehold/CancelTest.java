package dev.leasehold;

import static dev.leasehold.support.Conditions.acquireAndRelease;
import static dev.leasehold.support.Conditions.awaitHolder;
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

/** Tests that calls which are cancelled at any moment leave nothing behind. */
class CancelTest {
    private static final int ROUNDS = 300;
    /**
     * Range of the random delay of the cancellation: from before the call is sent to after its grant, on a busy
     * machine.
     */
    private static final long DELAY_MAX_NANOS = 3_000_000;
    /** A ttl far longer than the tests wait for a lock. */
    private static final Duration TTL = Duration.ofSeconds(60);

    private static void randomDelay() {
        LockSupport.parkNanos(ThreadLocalRandom.current().nextLong(DELAY_MAX_NANOS));
    }

    @Test
    void cancellingAFutureAtAnyMomentLeavesNoLock() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url());
                LeaseholdClient otherClient = LeaseholdClient.connect(broker.url())) {
            int granted = 0;
            for (int round = 0; round < ROUNDS; round++) {
                CompletableFuture<Lease> call = client.lock("a").ttl(TTL).acquireAsync();
                randomDelay();
                if (!call.cancel(true)) {
                    granted++;
                    call.join().close();
                }
                acquireAndRelease(otherClient, "a");
            }
            assertTrue(granted > 0 && granted < ROUNDS, "cancelled only before or only after the grant: " + granted);
        }
    }

    @Test
    void interruptingAThreadAtAnyMomentLeavesNoLock() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url());
                LeaseholdClient otherClient = LeaseholdClient.connect(broker.url())) {
            int granted = 0;
            for (int round = 0; round < ROUNDS; round++) {
                AtomicReference<Lease> acquired = new AtomicReference<>();
                CountDownLatch started = new CountDownLatch(1);
                Thread thread = new Thread(() -> {
                    started.countDown();
                    try {
                        acquired.set(client.lock("a").ttl(TTL).acquire());
                    } catch (InterruptedException e) {
                        // The call was not granted.
                    }
                });
                thread.start();
                started.await();
                randomDelay();
                thread.interrupt();
                thread.join();
                if (acquired.get() != null) {
                    granted++;
                    acquired.get().close();
                }
                acquireAndRelease(otherClient, "a");
            }
            assertTrue(granted > 0 && granted < ROUNDS, "cancelled only before or only after the grant: " + granted);
        }
    }

    @Test
    void aGrantThatCrossesACancelIsReleased() throws Exception {
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url());
                LeaseholdClient otherClient = LeaseholdClient.connect(broker.url())) {
            int connectionCount = proxy.connectionCount();
            proxy.holdBack(true);
            CompletableFuture<Lease> call = client.lock("a").ttl(TTL).acquireAsync();
            awaitHolder(otherClient, "a");
            assertTrue(call.cancel(true), "the grant has reached the client");
            proxy.holdBack(false);
            acquireAndRelease(otherClient, "a");
            assertEquals(connectionCount, proxy.connectionCount(), "on the same connection");
        }
    }
}
