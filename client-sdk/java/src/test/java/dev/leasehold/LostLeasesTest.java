package dev.leasehold;

import static dev.leasehold.support.Conditions.acquireAndRelease;
import static dev.leasehold.support.Conditions.awaitQueueLength;
import static dev.leasehold.support.Conditions.awaitResult;
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
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.Test;

/** Tests of all causes of lost leases, and of the outages that leases survive, with real brokers. */
class LostLeasesTest {
    private static final Duration TTL = Duration.ofSeconds(2);
    /** A ttl that is long enough to reach another broker in time, even on a busy machine. */
    private static final Duration LONG_TTL = Duration.ofSeconds(5);

    private static final Duration SAFETY_MARGIN = Duration.ofMillis(500);
    /** Returns a time shortly after the expiry in the store, at which another caller could be granted the lock. */
    private static long pastExpiryMillis(Duration ttl) {
        return ttl.toMillis() * 12 / 10 + 250 + 500;
    }

    /** Largest delay until a loss is reported if the program does not check the lease. */
    private static final Duration REPORT_DELAY_MAX = Duration.ofMillis(250);

    private static Duration since(long startedAt) {
        return Duration.ofNanos(System.nanoTime() - startedAt);
    }

    @Test
    void aLeaseWithoutABrokerExpiresByTheClientsClock() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            Lease lease = client.lock("a").ttl(TTL).acquire();
            CompletableFuture<Loss> lost = lease.lost();
            long killedAt = System.nanoTime();
            broker.kill();
            assertTrue(lease.isValid(), "expired too early");
            assertEquals(LostReason.EXPIRED, awaitResult(lost).reason());
            Duration validFor = since(killedAt);
            assertTrue(validFor.compareTo(TTL.minus(SAFETY_MARGIN).plus(REPORT_DELAY_MAX)) <= 0, validFor.toString());
            assertThrows(LeaseLostException.class, lease::close);
            broker.restart();
            acquireAndRelease(client, "a");
            assertFalse(lease.isValid(), "acquired again silently");
        }
    }

    @Test
    void aCallWithoutABrokerFailsAsUnavailable() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            broker.kill();
            long startedAt = System.nanoTime();
            UnavailableException error = assertThrows(UnavailableException.class, () -> client.tryAcquire("a"));
            assertTrue(error.getMessage().contains("no broker can be reached"), error.getMessage());
            assertTrue(since(startedAt).toSeconds() >= 4 && since(startedAt).toSeconds() <= 6);
            assertThrows(UnavailableException.class, () -> client.get("a"));
            assertThrows(UnavailableException.class, () -> client.setLimit("a", 2));
        }
    }

    @Test
    void aLockThatTheStoreLostIsReported() throws Exception {
        try (Redis redis = new Redis();
                Broker broker = Broker.start(redis);
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            Lease lease = client.acquire("a");
            CompletableFuture<QueuePosition> first = new CompletableFuture<>();
            CompletableFuture<QueuePosition> whileRecovering = new CompletableFuture<>();
            client.lock("a")
                    .onQueue(position -> {
                        first.complete(position);
                        if (position.recovery().isPresent()) {
                            whileRecovering.complete(position);
                        }
                    })
                    .acquireAsync();
            assertEquals(Optional.empty(), awaitResult(first).recovery());
            redis.command("FLUSHALL");
            assertEquals(LostReason.STORE_LOST, awaitResult(lease.lost()).reason());
            QueuePosition queued = awaitResult(whileRecovering);
            assertEquals(1, queued.position());
            assertEquals("was found empty", queued.recovery().orElseThrow().cause());
            LeaseLostException leaseLost = assertThrows(LeaseLostException.class, lease::close);
            assertEquals(LostReason.STORE_LOST, leaseLost.reason());
            // A temporary rejection is retried until 5 s after the wait.
            List<QueuePosition> positions = new CopyOnWriteArrayList<>();
            StoreRecoveringException recovering = assertThrows(
                    StoreRecoveringException.class,
                    () -> client.lock("b").onQueue(positions::add).tryAcquire());
            assertFalse(recovering.retryAfter().orElseThrow().isZero());
            assertEquals(
                    List.of(0), positions.stream().map(QueuePosition::position).toList());
            StoreRecovery recovery = positions.get(0).recovery().orElseThrow();
            assertEquals("was found empty", recovery.cause());
            assertTrue(recovery.since().isPresent() && !recovery.remaining().isZero());
        }
    }

    @Test
    void aLockIsHeldNoLongerThanMaxHold() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            Lease lease = client.lock("a").ttl(TTL).maxHold(TTL).acquire();
            long grantedAt = System.nanoTime();
            // The lease may expire by the client's own clock first.
            LostReason reason = awaitResult(lease.lost()).reason();
            assertTrue(List.of(LostReason.MAX_HOLD, LostReason.EXPIRED).contains(reason), reason.toString());
            assertTrue(since(grantedAt).compareTo(TTL.plus(REPORT_DELAY_MAX)) <= 0);
        }
    }

    @Test
    void leasesSurviveAKilledBroker() throws Exception {
        try (Redis redis = new Redis();
                Broker first = Broker.start(redis);
                Broker second = Broker.start(redis);
                LeaseholdClient client = LeaseholdClient.connect(first.url() + "," + second.url())) {
            Lease lease = client.lock("a").ttl(LONG_TTL).acquire();
            Lease inner = client.lock("a").under(lease).acquire();
            CompletableFuture<Loss> lost = lease.lost();
            first.kill();
            assertStaysValid(lost, LONG_TTL);
            assertTrue(lease.isValid() && inner.isValid());
            inner.close();
            lease.close();
            Lease nextLease = client.tryAcquire("a").orElseThrow();
            assertTrue(nextLease.fencingToken() > lease.fencingToken());
        }
    }

    /** Asserts that the lease is not lost before the store would have granted the lock to another caller. */
    private static void assertStaysValid(CompletableFuture<Loss> lost, Duration ttl) throws Exception {
        try {
            Loss loss = lost.get(pastExpiryMillis(ttl), TimeUnit.MILLISECONDS);
            throw new AssertionError("lost: " + loss);
        } catch (TimeoutException e) {
            // The expected outcome.
        }
    }

    @Test
    void leasesSurviveAStalledBroker() throws Exception {
        try (Redis redis = new Redis();
                Broker first = Broker.start(redis);
                Broker second = Broker.start(redis);
                LeaseholdClient client = LeaseholdClient.connect(first.url() + "," + second.url())) {
            // The failover starts when heartbeats are not acknowledged for a quarter of the ttl. Twice the ttl leaves
            // enough time after that.
            Duration ttl = TTL.multipliedBy(2);
            Lease lease = client.lock("a").ttl(ttl).acquire();
            first.program().pause();
            assertStaysValid(lease.lost(), ttl);
            lease.close();
            acquireAndRelease(client, "a");
            first.program().resume();
        }
    }

    @Test
    void aDrainMovesLeasesAndPendingAcquires() throws Exception {
        try (Redis redis = new Redis();
                Broker first = Broker.start(redis);
                Broker second = Broker.start(redis);
                LeaseholdClient client = LeaseholdClient.connect(first.url() + "," + second.url());
                LeaseholdClient observer = LeaseholdClient.connect(second.url())) {
            Lease lease = client.lock("a").ttl(TTL).acquire();
            CompletableFuture<Lease> pending = client.lock("a").ttl(TTL).acquireAsync();
            awaitQueueLength(observer, "a", 1);
            first.program().terminate();
            assertEquals(0, first.program().awaitExit());
            assertStaysValid(lease.lost(), TTL);
            assertFalse(pending.isDone());
            lease.close();
            assertTrue(awaitResult(pending).fencingToken() > lease.fencingToken());
        }
    }

    @Test
    void aWaiterKeepsItsPositionWhenItsBrokerIsKilled() throws Exception {
        try (Redis redis = new Redis();
                Broker firstBroker = Broker.start(redis);
                Broker secondBroker = Broker.start(redis);
                LeaseholdClient client = LeaseholdClient.connect(firstBroker.url() + "," + secondBroker.url());
                LeaseholdClient otherClient = LeaseholdClient.connect(secondBroker.url())) {
            Lease lease = otherClient.acquire("a");
            CompletableFuture<Lease> first = client.lock("a").acquireAsync();
            awaitQueueLength(otherClient, "a", 1);
            CompletableFuture<Lease> second = otherClient.lock("a").acquireAsync();
            awaitQueueLength(otherClient, "a", 2);
            firstBroker.kill();
            // Once its call is repeated, the waiter has its queue position again.
            acquireAndRelease(client, "b");
            lease.close();
            Lease next = awaitResult(first);
            assertFalse(second.isDone(), "another waiter was granted first");
            next.close();
            awaitResult(second).close();
        }
    }

    @Test
    void anUnansweredReleaseIsRetriedAtAnotherBroker() throws Exception {
        try (Redis redis = new Redis();
                Broker first = Broker.start(redis);
                Broker second = Broker.start(redis);
                LeaseholdClient client = LeaseholdClient.connect(first.url() + "," + second.url())) {
            Lease lease = client.acquire("a");
            first.program().pause();
            CompletableFuture<Void> released = lease.releaseAsync();
            first.kill();
            awaitResult(released);
            assertTrue(client.tryAcquire("a").isPresent(), "not released");
        }
    }
}
