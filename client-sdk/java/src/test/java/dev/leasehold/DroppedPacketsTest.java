package dev.leasehold;

import static dev.leasehold.support.Conditions.acquireAndRelease;
import static dev.leasehold.support.Conditions.awaitHolder;
import static dev.leasehold.support.Conditions.awaitQueueLength;
import static dev.leasehold.support.Conditions.awaitResult;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.error.LeaseLostException;
import dev.leasehold.support.Broker;
import dev.leasehold.support.Proxy;
import dev.leasehold.support.Redis;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Tests with a network that drops or delays packets while its connections stay open: a lease expires by the client's
 * own clock before another caller is granted the lock.
 */
class DroppedPacketsTest {
    private static final Duration TTL = Duration.ofSeconds(2);
    private static final Duration SAFETY_MARGIN = Duration.ofMillis(500);
    /** A ttl that exceeds the stalls of a slow machine. */
    private static final Duration LONG_TTL = Duration.ofSeconds(20);

    private static Duration since(long startedAt) {
        return Duration.ofNanos(System.nanoTime() - startedAt);
    }

    @ParameterizedTest
    @CsvSource({"true, true", "true, false", "false, true"})
    void aLossIsReportedBeforeAnotherCallerIsGranted(boolean toBroker, boolean toClient) throws Exception {
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url());
                LeaseholdClient otherClient = LeaseholdClient.connect(broker.url())) {
            Lease lease = client.lock("a").ttl(TTL).acquire();
            CompletableFuture<Long> reportedAt = lease.lost().thenApply(loss -> System.nanoTime());
            CompletableFuture<Lease> pending =
                    otherClient.lock("a").ttl(LONG_TTL).acquireAsync();
            CompletableFuture<Long> grantedAt = pending.thenApply(next -> System.nanoTime());
            awaitQueueLength(otherClient, "a", 1);
            assertTrue(lease.isValid(), "lost before anything happened");
            proxy.dropData(toBroker, toClient);
            Lease nextLease = awaitResult(pending);
            assertTrue(awaitResult(grantedAt) > awaitResult(reportedAt), "granted before the loss was reported");
            assertTrue(proxy.droppedBytes() > 0, "no data was dropped");
            assertTrue(nextLease.fencingToken() > lease.fencingToken());

            // The network works again: the client reconnects, but the lock stays lost.
            proxy.dropData(false, false);
            proxy.closeConnections();
            acquireAndRelease(client, "another");
            assertFalse(lease.isValid());
            assertEquals(LostReason.EXPIRED, lease.loss().orElseThrow().reason());
            assertThrows(LeaseLostException.class, lease::close);
            assertTrue(nextLease.isValid(), "a lost lease releases nothing");
        }
    }

    @Test
    void validityStartsWhenTheHeartbeatIsSent() throws Exception {
        Duration ttl = Duration.ofSeconds(6);
        Duration delay = Duration.ofMillis(900);
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url())) {
            Lease lease = client.lock("a").ttl(ttl).acquire();
            proxy.delay(delay.toMillis());
            // Longer than the validity that was acknowledged without delay.
            TimeUnit.MILLISECONDS.sleep(ttl.dividedBy(3).plus(delay).toMillis());
            Duration maxRemaining = Duration.ZERO;
            for (long startedAt = System.nanoTime(); since(startedAt).toSeconds() < 4; TimeUnit.MILLISECONDS.sleep(5)) {
                Duration remaining = lease.remaining();
                maxRemaining = remaining.compareTo(maxRemaining) > 0 ? remaining : maxRemaining;
            }
            assertTrue(lease.isValid());
            Duration limit = ttl.minus(ttl.dividedBy(10)).minus(delay).plusMillis(10);
            assertTrue(maxRemaining.compareTo(limit) <= 0, "counted from the acknowledgement: " + maxRemaining);
        }
    }

    @Test
    void aLateAcknowledgementDoesNotRestoreValidity() throws Exception {
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url())) {
            Lease lease = client.lock("a").ttl(TTL).acquire();
            // For a while, acknowledgements of heartbeats arrive after the end of the validity.
            proxy.delay(1_700);
            assertEquals(LostReason.EXPIRED, awaitResult(lease.lost()).reason());
            for (long startedAt = System.nanoTime(); since(startedAt).toSeconds() < 3; TimeUnit.MILLISECONDS.sleep(5)) {
                assertFalse(lease.isValid(), "valid again");
            }
        }
    }

    @Test
    void theValidityOfALateGrantStartsWhenTheCallIsSent() throws Exception {
        Duration ttl = Duration.ofSeconds(4);
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url())) {
            proxy.delay(1_500);
            Lease lease = client.lock("a").ttl(ttl).acquire();
            Duration limit = ttl.minus(SAFETY_MARGIN).minusMillis(1_500);
            assertTrue(lease.isValid() && lease.remaining().compareTo(limit) <= 0, lease.toString());
            proxy.delay(0);
        }
    }

    @Test
    void aLateGrantIsDeliveredAfterAHeartbeat() throws Exception {
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url())) {
            proxy.delay(1_100);
            CompletableFuture<Lease> call = client.lock("a").ttl(TTL).acquireAsync();
            assertThrows(TimeoutException.class, () -> call.get(500, TimeUnit.MILLISECONDS));
            // All messages after the grant are fast.
            proxy.delay(0);
            Duration remaining = awaitResult(call).remaining();
            assertTrue(
                    remaining.compareTo(TTL.dividedBy(2).minus(SAFETY_MARGIN).minusMillis(70)) >= 0,
                    remaining.toString());
        }
    }

    @Test
    void aPendingAcquireFailsOverFromADeadConnection() throws Exception {
        Duration ttl = Duration.ofSeconds(20);
        try (Redis redis = new Redis();
                Broker first = Broker.start(redis);
                Broker second = Broker.start(redis);
                Proxy proxy = new Proxy(first);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url() + "," + second.url());
                LeaseholdClient otherClient = LeaseholdClient.connect(second.url())) {
            Lease lease = otherClient.lock("a").ttl(ttl).acquire();
            CompletableFuture<Lease> pending = client.lock("a").ttl(ttl).acquireAsync();
            awaitQueueLength(otherClient, "a", 1);
            proxy.rejectConnections(true);
            proxy.dropData(true, true);
            // The broker would end the wait after 6 s without a heartbeat.
            assertThrows(TimeoutException.class, () -> pending.get(8, TimeUnit.SECONDS));
            awaitQueueLength(otherClient, "a", 1);
            lease.close();
            assertTrue(awaitResult(pending).isValid());
        }
    }

    @Test
    void aCallIsRetriedWithItsRequestId() throws Exception {
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url());
                LeaseholdClient otherClient = LeaseholdClient.connect(broker.url())) {
            proxy.dropData(false, true);
            CompletableFuture<Lease> call = client.lock("a").acquireAsync();
            Holder holder = awaitHolder(otherClient, "a");
            assertFalse(call.isDone(), "its grant is lost");
            proxy.dropData(false, false);
            proxy.closeConnections();
            Lease lease = awaitResult(call);
            assertEquals(holder.leaseId(), lease.leaseId());
            assertEquals(holder.fencingToken(), lease.fencingToken());
        }
    }
}
