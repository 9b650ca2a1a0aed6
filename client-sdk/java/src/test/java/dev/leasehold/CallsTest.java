package dev.leasehold;

import static dev.leasehold.support.Conditions.acquireAndRelease;
import static dev.leasehold.support.Conditions.awaitQueueLength;
import static dev.leasehold.support.Conditions.awaitResult;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.error.ClosedException;
import dev.leasehold.error.HeldException;
import dev.leasehold.error.InvalidException;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.WaitTimeoutException;
import dev.leasehold.support.Fixture;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Tests of the calls of the client, with a real broker and with the fake one. */
class CallsTest {
    private static final Duration SHORT = Duration.ofMillis(300);
    /** Resolution of the clock that the client reads (/proc/uptime): a wait may end earlier by this time. */
    private static final Duration CLOCK_STEP = Duration.ofMillis(10);

    @ParameterizedTest
    @EnumSource
    void theNextHolderHasALargerFencingToken(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            LeaseholdClient otherClient = fixture.client("other");
            Lease lease = client.acquire("a");
            lease.check();
            assertTrue(lease.isValid() && lease.loss().isEmpty());
            assertTrue(lease.fencingToken() > 0 && !lease.remaining().isZero());
            assertEquals(List.of("default/a"), lease.locks());
            assertEquals(lease.fencingToken(), lease.fencingToken("a").orElseThrow());
            assertTrue(lease.fencingToken("another").isEmpty());
            assertTrue(otherClient.tryAcquire("a").isEmpty(), "two holders");
            lease.close();
            assertFalse(lease.isValid());
            assertEquals(LostReason.RELEASED, lease.loss().orElseThrow().reason());
            assertEquals(Duration.ZERO, lease.remaining());
            assertThrows(LeaseLostException.class, lease::check);
            Lease nextLease = otherClient.tryAcquire("a").orElseThrow();
            assertTrue(nextLease.fencingToken() > lease.fencingToken());
            lease.close();
            assertTrue(nextLease.isValid(), "a second release does nothing");
            assertEquals(
                    nextLease.leaseId(),
                    client.get("a").orElseThrow().holders().get(0).leaseId());
            nextLease.close();
        }
    }

    @ParameterizedTest
    @EnumSource
    void aTryBlockReleasesTheLockOnAnException(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            assertThrows(ArithmeticException.class, () -> {
                try (Lease lease = client.acquire("a")) {
                    assertTrue(lease.isValid());
                    throw new ArithmeticException();
                }
            });
            assertTrue(client.get("a").isEmpty());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aTimedOutWaitNamesTheHolder(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            Lease lease = fixture.client("one").lock("a").reason("maintenance").acquire();
            LockRequest request = fixture.client("other").lock("a").waitUpTo(SHORT);
            long startedAt = System.nanoTime();
            WaitTimeoutException timeout = assertThrows(WaitTimeoutException.class, request::acquire);
            assertTrue(System.nanoTime() - startedAt >= SHORT.toNanos() - CLOCK_STEP.toNanos());
            Holder holder = timeout.holders().get(0);
            assertEquals("one", holder.owner());
            assertEquals("maintenance", holder.reason());
            assertEquals(lease.leaseId(), holder.leaseId());
            assertTrue(timeout.getMessage().contains("one (maintenance)"), timeout.getMessage());
            assertEquals("aTimedOutWaitNamesTheHolder", ownFrame(timeout), "the stack trace starts at the caller");
            LockRequest tryRequest = request.waitUpTo(Duration.ZERO);
            HeldException held = assertThrows(HeldException.class, tryRequest::acquire);
            assertEquals(
                    List.of(lease.leaseId()),
                    held.holders().stream().map(Holder::leaseId).toList());
        }
    }

    private static String ownFrame(Exception error) {
        return List.of(error.getStackTrace()).stream()
                .filter(frame -> frame.getClassName().equals(CallsTest.class.getName()))
                .findFirst()
                .map(StackTraceElement::getMethodName)
                .orElse("nowhere");
    }

    @ParameterizedTest
    @EnumSource
    void aWaiterGetsItsQueuePositionAndIsGrantedInOrder(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            LeaseholdClient otherClient = fixture.client("other");
            Lease lease = client.acquire("a");
            CompletableFuture<Lease> first = client.lock("a").acquireAsync();
            awaitQueueLength(client, "a", 1);
            List<QueuePosition> positions = new CopyOnWriteArrayList<>();
            CompletableFuture<Lease> second =
                    otherClient.lock("a").onQueue(positions::add).acquireAsync();
            awaitQueueLength(client, "a", 2);
            lease.close();
            Lease firstLease = awaitResult(first);
            assertFalse(second.isDone());
            firstLease.close();
            Lease secondLease = awaitResult(second);
            assertTrue(secondLease.fencingToken() > firstLease.fencingToken());
            assertTrue(firstLease.fencingToken() > lease.fencingToken());
            assertEquals(2, positions.get(0).position());
            assertEquals(2, positions.get(0).queueLength());
            List<Integer> numbers =
                    positions.stream().map(QueuePosition::position).toList();
            assertEquals(numbers.stream().sorted((a, b) -> b - a).toList(), numbers);
        }
    }

    @Test
    void theStateAndTheQueuePositionSayByWhomTheLockIsClosed() throws Exception {
        try (Fixture fixture = Fixture.BrokerKind.REAL.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            Duration ttl = Duration.ofSeconds(2);
            Lease lease = client.lock("a")
                    .ttl(ttl)
                    .atLeast(Duration.ofMinutes(1))
                    .reason("hourly")
                    .acquire();
            assertEquals(Optional.empty(), client.get("a").orElseThrow().closure());
            CompletableFuture<QueuePosition> first = new CompletableFuture<>();
            CompletableFuture<Closure> whileQueued = new CompletableFuture<>();
            client.lock("a")
                    .onQueue(position -> {
                        first.complete(position);
                        position.closure().ifPresent(whileQueued::complete);
                    })
                    .acquireAsync();
            assertEquals(Optional.empty(), awaitResult(first).closure());
            lease.close();
            for (Closure closure : List.of(
                    awaitResult(whileQueued),
                    client.get("a").orElseThrow().closure().orElseThrow())) {
                assertEquals(ClosureCause.AT_LEAST, closure.cause());
                assertEquals("one", closure.owner());
                assertEquals("hourly", closure.reason());
                assertTrue(closure.remaining().compareTo(ttl) > 0, closure.toString());
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void theQueueHookIsCalledByTheWaitingThread(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            Lease lease = fixture.client("one").acquire("a");
            List<Thread> callers = new CopyOnWriteArrayList<>();
            LockRequest request = fixture.client("other")
                    .lock("a")
                    .waitUpTo(Duration.ofSeconds(5))
                    .onQueue(position -> {
                        callers.add(Thread.currentThread());
                        throw new ArithmeticException("of the hook");
                    });
            assertThrows(ArithmeticException.class, request::acquire);
            assertEquals(List.of(Thread.currentThread()), callers);
            CompletableFuture<Lease> call = request.acquireAsync();
            Exception failed = assertThrows(Exception.class, () -> call.get(5, TimeUnit.SECONDS));
            assertEquals(ArithmeticException.class, failed.getCause().getClass());
            assertNotEquals(Thread.currentThread(), callers.get(1));
            awaitQueueLength(fixture.client("third"), "a", 0);
            assertTrue(lease.isValid());
        }
    }

    @ParameterizedTest
    @EnumSource
    void anInterruptCancelsTheWait(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            LeaseholdClient otherClient = fixture.client("other");
            Lease lease = client.acquire("a");
            CompletableFuture<Throwable> ended = new CompletableFuture<>();
            Thread waiter = new Thread(() -> {
                try {
                    otherClient.acquire("a");
                    ended.complete(null);
                } catch (InterruptedException e) {
                    ended.complete(e);
                }
            });
            waiter.start();
            awaitQueueLength(client, "a", 1);
            waiter.interrupt();
            assertEquals(InterruptedException.class, awaitResult(ended).getClass());
            awaitQueueLength(client, "a", 0);
            lease.close();
            acquireAndRelease(client, "a");
        }
    }

    @ParameterizedTest
    @EnumSource
    void completingTheFutureCancelsTheWait(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            Lease lease = client.acquire("a");
            CompletableFuture<Lease> cancelled =
                    fixture.client("other").lock("a").acquireAsync();
            awaitQueueLength(client, "a", 1);
            assertTrue(cancelled.cancel(true));
            awaitQueueLength(client, "a", 0);
            CompletableFuture<Lease> timedOut =
                    fixture.client("third").lock("a").acquireAsync().orTimeout(50, TimeUnit.MILLISECONDS);
            assertThrows(Exception.class, timedOut::join);
            awaitQueueLength(client, "a", 0);
            lease.close();
            acquireAndRelease(client, "a");
        }
    }

    @ParameterizedTest
    @EnumSource
    void anInterruptedThreadReleasesWithoutWaiting(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            Lease lease = client.acquire("a");
            Thread.currentThread().interrupt();
            lease.close();
            assertTrue(Thread.interrupted(), "the thread stays interrupted");
            acquireAndRelease(client, "a");
        }
    }

    @ParameterizedTest
    @EnumSource
    void tryAcquireIsRepeatedUpToTheNumberOfAttempts(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            Lease lease = fixture.client("one").acquire("a");
            LockRequest request = fixture.client("other").lock("a");
            assertTrue(request.tryAcquire(3, Duration.ofMillis(10)).isEmpty());
            assertTrue(awaitResult(request.tryAcquireAsync()).isEmpty());
            CompletableFuture<Void> released = CompletableFuture.runAsync(
                    lease::close, CompletableFuture.delayedExecutor(100, TimeUnit.MILLISECONDS));
            Optional<Lease> nextLease = request.tryAcquire(500, Duration.ofMillis(20));
            awaitResult(released);
            assertTrue(nextLease.orElseThrow().isValid());
        }
    }

    @ParameterizedTest
    @EnumSource
    void closingTheClientEndsLeasesAndPendingAcquires(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            LeaseholdClient otherClient = fixture.client("other");
            Lease held = otherClient.acquire("b");
            Lease lease = client.acquire("a");
            CompletableFuture<Loss> lost = lease.lost();
            CompletableFuture<Lease> pending = client.lock("b").acquireAsync();
            awaitQueueLength(otherClient, "b", 1);
            client.close();
            assertEquals(LostReason.CLOSED, awaitResult(lost).reason());
            assertFalse(lease.isValid());
            Exception failed = assertThrows(Exception.class, () -> pending.get(5, TimeUnit.SECONDS));
            assertEquals(ClosedException.class, failed.getCause().getClass());
            acquireAndRelease(otherClient, "a");
            awaitQueueLength(otherClient, "b", 0);
            assertTrue(held.isValid());
            assertThrows(ClosedException.class, () -> client.acquire("c"));
            assertThrows(ClosedException.class, () -> client.get("c"));
            assertThrows(ClosedException.class, () -> client.setLimit("c", 1));
            client.close();
            LeaseLostException leaseLost = assertThrows(LeaseLostException.class, lease::close);
            assertEquals(LostReason.CLOSED, leaseLost.reason());
        }
    }

    @ParameterizedTest
    @EnumSource
    void invalidArgumentsAreRejected(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            assertThrows(InvalidException.class, () -> client.lockAll());
            assertThrows(IllegalArgumentException.class, () -> client.lock("a").ttl(Duration.ofSeconds(-1)));
            assertThrows(IllegalArgumentException.class, () -> client.lock("a").waitUpTo(Duration.ofNanos(-1)));
        }
    }

    @ParameterizedTest
    @EnumSource
    void anElectionHasOneLeader(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            Election election = fixture.client("one").election("job");
            Election otherElection = fixture.client("other").election("job");
            LeaderObserver observer = otherElection.observe();
            assertTrue(observer.next().isEmpty());
            Lease leader = election.campaign();
            CompletableFuture<Lease> candidate = otherElection.campaignAsync();
            assertEquals("one", observer.next().orElseThrow().owner());
            leader.close();
            Lease nextLeader = awaitResult(candidate);
            assertEquals(nextLeader.leaseId(), observer.next().orElseThrow().leaseId());
        }
    }
}
