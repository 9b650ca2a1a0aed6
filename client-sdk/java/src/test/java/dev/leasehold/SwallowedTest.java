package dev.leasehold;

import static dev.leasehold.support.Line.holderOf;
import static dev.leasehold.support.Line.soon;
import static dev.leasehold.support.Line.takes;
import static dev.leasehold.support.Line.waitsFor;
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
 * A network that swallows or delays packets while its connections stay open: a lease is over by its own clock, before
 * somebody else has the lock.
 */
class SwallowedTest {
    private static final Duration TTL = Duration.ofSeconds(2);
    private static final Duration MARGIN = Duration.ofMillis(500);
    /** Outlasts the stalls of a slow machine. */
    private static final Duration LONG = Duration.ofSeconds(20);

    private static Duration since(long begun) {
        return Duration.ofNanos(System.nanoTime() - begun);
    }

    @ParameterizedTest
    @CsvSource({"true, true", "true, false", "false, true"})
    void aLossIsKnownBeforeSomebodyElseHasTheLock(boolean toBroker, boolean toClient) throws Exception {
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url());
                LeaseholdClient other = LeaseholdClient.connect(broker.url())) {
            Lease lease = client.lock("a").ttl(TTL).acquire();
            CompletableFuture<Long> told = lease.lost().thenApply(loss -> System.nanoTime());
            CompletableFuture<Lease> turn = other.lock("a").ttl(LONG).acquireAsync();
            CompletableFuture<Long> granted = turn.thenApply(next -> System.nanoTime());
            waitsFor(other, "a", 1);
            assertTrue(lease.isValid(), "lost before anything happened");
            proxy.swallow(toBroker, toClient);
            Lease following = soon(turn);
            assertTrue(soon(granted) > soon(told), "somebody else had it before");
            assertTrue(proxy.lost() > 0, "nothing was swallowed");
            assertTrue(following.fencingToken() > lease.fencingToken());

            // The network is back, and so is the client, but not its lock.
            proxy.swallow(false, false);
            proxy.cut();
            takes(client, "another");
            assertFalse(lease.isValid());
            assertEquals(LostReason.EXPIRED, lease.loss().orElseThrow().reason());
            assertThrows(LeaseLostException.class, lease::close);
            assertTrue(following.isValid(), "a lost lease gives nothing back");
        }
    }

    @Test
    void validityCountsFromTheSendingOfAHeartbeat() throws Exception {
        Duration ttl = Duration.ofSeconds(6);
        Duration delay = Duration.ofMillis(900);
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url())) {
            Lease lease = client.lock("a").ttl(ttl).acquire();
            proxy.delay(delay.toMillis());
            // Past what was acknowledged without delay.
            TimeUnit.MILLISECONDS.sleep(ttl.dividedBy(3).plus(delay).toMillis());
            Duration most = Duration.ZERO;
            for (long begun = System.nanoTime(); since(begun).toSeconds() < 4; TimeUnit.MILLISECONDS.sleep(5)) {
                Duration remaining = lease.remaining();
                most = remaining.compareTo(most) > 0 ? remaining : most;
            }
            assertTrue(lease.isValid());
            Duration limit = ttl.minus(ttl.dividedBy(10)).minus(delay).plusMillis(10);
            assertTrue(most.compareTo(limit) <= 0, "as if it had been sent when its answer came: " + most);
        }
    }

    @Test
    void whatIsSaidTooLateChangesNothing() throws Exception {
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url())) {
            Lease lease = client.lock("a").ttl(TTL).acquire();
            // Acknowledgements of heartbeats come when the trust is over, for a while.
            proxy.delay(1_700);
            assertEquals(LostReason.EXPIRED, soon(lease.lost()).reason());
            for (long begun = System.nanoTime(); since(begun).toSeconds() < 3; TimeUnit.MILLISECONDS.sleep(5)) {
                assertFalse(lease.isValid(), "trusted again");
            }
        }
    }

    @Test
    void aLateGrantCountsFromItsCall() throws Exception {
        Duration ttl = Duration.ofSeconds(4);
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url())) {
            proxy.delay(1_500);
            Lease lease = client.lock("a").ttl(ttl).acquire();
            Duration most = ttl.minus(MARGIN).minusMillis(1_500);
            assertTrue(lease.isValid() && lease.remaining().compareTo(most) <= 0, lease.toString());
            proxy.delay(0);
        }
    }

    @Test
    void aGrantThatComesTooLateIsHandedOutByAHeartbeat() throws Exception {
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url())) {
            proxy.delay(1_100);
            CompletableFuture<Lease> call = client.lock("a").ttl(TTL).acquireAsync();
            assertThrows(TimeoutException.class, () -> call.get(500, TimeUnit.MILLISECONDS));
            // From the grant on everything is fast again.
            proxy.delay(0);
            Duration remaining = soon(call).remaining();
            assertTrue(remaining.compareTo(TTL.dividedBy(2).minus(MARGIN).minusMillis(70)) >= 0, remaining.toString());
        }
    }

    @Test
    void aWaitWithoutLeasesLeavesADeadConnection() throws Exception {
        Duration ttl = Duration.ofSeconds(20);
        try (Redis redis = new Redis();
                Broker first = Broker.start(redis);
                Broker second = Broker.start(redis);
                Proxy proxy = new Proxy(first);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url() + "," + second.url());
                LeaseholdClient other = LeaseholdClient.connect(second.url())) {
            Lease lease = other.lock("a").ttl(ttl).acquire();
            CompletableFuture<Lease> waits = client.lock("a").ttl(ttl).acquireAsync();
            waitsFor(other, "a", 1);
            proxy.refuse(true);
            proxy.swallow(true, true);
            // Six seconds without a heartbeat would end the wait.
            assertThrows(TimeoutException.class, () -> waits.get(8, TimeUnit.SECONDS));
            waitsFor(other, "a", 1);
            lease.close();
            assertTrue(soon(waits).isValid());
        }
    }

    @Test
    void aCallIsRepeatedWithItsRequestId() throws Exception {
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url());
                LeaseholdClient other = LeaseholdClient.connect(broker.url())) {
            proxy.swallow(false, true);
            CompletableFuture<Lease> call = client.lock("a").acquireAsync();
            Holder holder = holderOf(other, "a");
            assertFalse(call.isDone(), "its grant is lost");
            proxy.swallow(false, false);
            proxy.cut();
            Lease lease = soon(call);
            assertEquals(holder.leaseId(), lease.leaseId());
            assertEquals(holder.fencingToken(), lease.fencingToken());
        }
    }
}
