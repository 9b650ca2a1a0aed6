package dev.leasehold;

import static dev.leasehold.support.Line.soon;
import static dev.leasehold.support.Line.takes;
import static dev.leasehold.support.Line.waitsFor;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.StoreRecoveringException;
import dev.leasehold.error.UnavailableException;
import dev.leasehold.support.Broker;
import dev.leasehold.support.Redis;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.Test;

/** Every way in which a lock is lost, and the outages in which it is not, with real brokers. */
class LossesTest {
    private static final Duration TTL = Duration.ofSeconds(2);
    /** Where another broker is to be found in time, on a busy machine, too. */
    private static final Duration LONG_TTL = Duration.ofSeconds(5);

    private static final Duration MARGIN = Duration.ofMillis(500);
    /** When the store gives the lock to somebody else, and a little later. */
    private static long pastExpiryMillis(Duration ttl) {
        return ttl.toMillis() * 12 / 10 + 250 + 500;
    }

    /** How late a loss is told that nobody asks for. */
    private static final Duration TICKS = Duration.ofMillis(250);

    private static Duration since(long begun) {
        return Duration.ofNanos(System.nanoTime() - begun);
    }

    @Test
    void aHolderWithoutABrokerStopsTrustingByItself() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            Lease lease = client.lock("a").ttl(TTL).acquire();
            CompletableFuture<Loss> lost = lease.lost();
            long killed = System.nanoTime();
            broker.kill();
            assertTrue(lease.isValid(), "its time is not over yet");
            assertEquals(LostReason.EXPIRED, soon(lost).reason());
            Duration trusted = since(killed);
            assertTrue(trusted.compareTo(TTL.minus(MARGIN).plus(TICKS)) <= 0, trusted.toString());
            assertThrows(LeaseLostException.class, lease::close);
            broker.restart();
            takes(client, "a");
            assertFalse(lease.isValid(), "nothing is taken again silently");
        }
    }

    @Test
    void aCallThatNobodyAnswersSaysSo() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            broker.kill();
            long begun = System.nanoTime();
            UnavailableException none = assertThrows(UnavailableException.class, () -> client.tryAcquire("a"));
            assertTrue(none.getMessage().contains("no broker can be reached"), none.getMessage());
            assertTrue(since(begun).toSeconds() >= 4 && since(begun).toSeconds() <= 6);
            assertThrows(UnavailableException.class, () -> client.get("a"));
        }
    }

    @Test
    void aStoreThatLosesALockIsToldOf() throws Exception {
        try (Redis redis = new Redis();
                Broker broker = Broker.start(redis);
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            Lease lease = client.acquire("a");
            redis.command("FLUSHALL");
            assertEquals(LostReason.STORE_LOST, soon(lease.lost()).reason());
            LeaseLostException late = assertThrows(LeaseLostException.class, lease::close);
            assertEquals(LostReason.STORE_LOST, late.reason());
            // Refused for now is repeated until 5 s after the wait.
            StoreRecoveringException recovering =
                    assertThrows(StoreRecoveringException.class, () -> client.tryAcquire("b"));
            assertFalse(recovering.retryAfter().orElseThrow().isZero());
        }
    }

    @Test
    void aLockIsHeldNoLongerThanMaxHold() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            Lease lease = client.lock("a").ttl(TTL).maxHold(TTL).acquire();
            long granted = System.nanoTime();
            // The client's own clock may be first.
            LostReason reason = soon(lease.lost()).reason();
            assertTrue(List.of(LostReason.MAX_HOLD, LostReason.EXPIRED).contains(reason), reason.toString());
            assertTrue(since(granted).compareTo(TTL.plus(TICKS)) <= 0);
        }
    }

    @Test
    void aKilledBrokerCostsNoLease() throws Exception {
        try (Redis redis = new Redis();
                Broker first = Broker.start(redis);
                Broker second = Broker.start(redis);
                LeaseholdClient client = LeaseholdClient.connect(first.url() + "," + second.url())) {
            Lease lease = client.lock("a").ttl(LONG_TTL).acquire();
            Lease inner = client.lock("a").under(lease).acquire();
            CompletableFuture<Loss> lost = lease.lost();
            first.kill();
            assertStays(lost, LONG_TTL);
            assertTrue(lease.isValid() && inner.isValid());
            inner.close();
            lease.close();
            Lease taken = client.tryAcquire("a").orElseThrow();
            assertTrue(taken.fencingToken() > lease.fencingToken());
        }
    }

    /** Nothing comes of it until the store would have given the lock to somebody else. */
    private static void assertStays(CompletableFuture<Loss> lost, Duration ttl) throws Exception {
        try {
            Loss loss = lost.get(pastExpiryMillis(ttl), TimeUnit.MILLISECONDS);
            throw new AssertionError("lost: " + loss);
        } catch (TimeoutException e) {
            // As it should be.
        }
    }

    @Test
    void aBrokerThatStandsStillIsLeft() throws Exception {
        try (Redis redis = new Redis();
                Broker first = Broker.start(redis);
                Broker second = Broker.start(redis);
                LeaseholdClient client = LeaseholdClient.connect(first.url() + "," + second.url())) {
            // It is noticed when heartbeats have no answer for a quarter of the ttl; then there is that much left
            // again.
            Duration ttl = TTL.multipliedBy(2);
            Lease lease = client.lock("a").ttl(ttl).acquire();
            first.program().pause();
            assertStays(lease.lost(), ttl);
            lease.close();
            takes(client, "a");
            first.program().resume();
        }
    }

    @Test
    void aDrainMovesLeasesAndWaits() throws Exception {
        try (Redis redis = new Redis();
                Broker first = Broker.start(redis);
                Broker second = Broker.start(redis);
                LeaseholdClient client = LeaseholdClient.connect(first.url() + "," + second.url());
                LeaseholdClient observer = LeaseholdClient.connect(second.url())) {
            Lease lease = client.lock("a").ttl(TTL).acquire();
            CompletableFuture<Lease> waits = client.lock("a").ttl(TTL).acquireAsync();
            waitsFor(observer, "a", 1);
            first.program().terminate();
            assertEquals(0, first.program().ended());
            assertStays(lease.lost(), TTL);
            assertFalse(waits.isDone());
            lease.close();
            assertTrue(soon(waits).fencingToken() > lease.fencingToken());
        }
    }

    @Test
    void aWaitKeepsItsPlaceWhenItsBrokerDies() throws Exception {
        try (Redis redis = new Redis();
                Broker first = Broker.start(redis);
                Broker second = Broker.start(redis);
                LeaseholdClient client = LeaseholdClient.connect(first.url() + "," + second.url());
                LeaseholdClient other = LeaseholdClient.connect(second.url())) {
            Lease lease = other.acquire("a");
            CompletableFuture<Lease> leads = client.lock("a").acquireAsync();
            waitsFor(other, "a", 1);
            CompletableFuture<Lease> behind = other.lock("a").acquireAsync();
            waitsFor(other, "a", 2);
            first.kill();
            // The place of the wait is its own again once its call is repeated.
            takes(client, "b");
            lease.close();
            Lease next = soon(leads);
            assertFalse(behind.isDone(), "nobody passes it");
            next.close();
            soon(behind).close();
        }
    }

    @Test
    void aReleaseWithoutAnAnswerIsRepeatedElsewhere() throws Exception {
        try (Redis redis = new Redis();
                Broker first = Broker.start(redis);
                Broker second = Broker.start(redis);
                LeaseholdClient client = LeaseholdClient.connect(first.url() + "," + second.url())) {
            Lease lease = client.acquire("a");
            first.program().pause();
            CompletableFuture<Void> released = lease.releaseAsync();
            first.kill();
            soon(released);
            assertTrue(client.tryAcquire("a").isPresent(), "it is given back");
        }
    }
}
