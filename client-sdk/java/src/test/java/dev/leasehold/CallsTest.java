package dev.leasehold;

import static dev.leasehold.support.Line.soon;
import static dev.leasehold.support.Line.takes;
import static dev.leasehold.support.Line.waitsFor;
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
import dev.leasehold.support.Site;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** What the calls do, with a broker and with the fake alike. */
class CallsTest {
    private static final Duration SHORT = Duration.ofMillis(300);
    /** The steps of the clock that the client reads (/proc/uptime): a wait may end that much sooner. */
    private static final Duration CLOCK_STEP = Duration.ofMillis(10);

    @ParameterizedTest
    @EnumSource
    void oneHoldsAndTheNextHasALargerToken(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient one = site.client("one");
            LeaseholdClient other = site.client("other");
            Lease lease = one.acquire("a");
            lease.check();
            assertTrue(lease.isValid() && lease.loss().isEmpty());
            assertTrue(lease.fencingToken() > 0 && !lease.remaining().isZero());
            assertEquals(List.of("default/a"), lease.locks());
            assertEquals(lease.fencingToken(), lease.fencingToken("a").orElseThrow());
            assertTrue(lease.fencingToken("another").isEmpty());
            assertTrue(other.tryAcquire("a").isEmpty(), "two have it");
            lease.close();
            assertFalse(lease.isValid());
            assertEquals(LostReason.RELEASED, lease.loss().orElseThrow().reason());
            assertEquals(Duration.ZERO, lease.remaining());
            assertThrows(LeaseLostException.class, lease::check);
            Lease taken = other.tryAcquire("a").orElseThrow();
            assertTrue(taken.fencingToken() > lease.fencingToken());
            lease.close();
            assertTrue(taken.isValid(), "a second release does nothing");
            assertEquals(
                    taken.leaseId(), one.get("a").orElseThrow().holders().get(0).leaseId());
            taken.close();
        }
    }

    @ParameterizedTest
    @EnumSource
    void aBlockGivesBackWhateverHappensInside(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient client = site.client("one");
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
    void aWaitEndsWithWhoWasInTheWay(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            Lease lease = site.client("one").lock("a").reason("to be there").acquire();
            LockRequest waits = site.client("other").lock("a").waitUpTo(SHORT);
            long begun = System.nanoTime();
            WaitTimeoutException late = assertThrows(WaitTimeoutException.class, waits::acquire);
            assertTrue(System.nanoTime() - begun >= SHORT.toNanos() - CLOCK_STEP.toNanos());
            Holder holder = late.holders().get(0);
            assertEquals("one", holder.owner());
            assertEquals("to be there", holder.reason());
            assertEquals(lease.leaseId(), holder.leaseId());
            assertTrue(late.getMessage().contains("one (to be there)"), late.getMessage());
            assertEquals("aWaitEndsWithWhoWasInTheWay", ownFrame(late), "it is thrown where its caller is");
            LockRequest tries = waits.waitUpTo(Duration.ZERO);
            HeldException held = assertThrows(HeldException.class, tries::acquire);
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
    void aWaiterLearnsItsPlaceAndIsGrantedInItsTurn(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient one = site.client("one");
            LeaseholdClient other = site.client("other");
            Lease lease = one.acquire("a");
            CompletableFuture<Lease> first = one.lock("a").acquireAsync();
            waitsFor(one, "a", 1);
            List<QueuePlace> places = new CopyOnWriteArrayList<>();
            CompletableFuture<Lease> second =
                    other.lock("a").onQueue(places::add).acquireAsync();
            waitsFor(one, "a", 2);
            lease.close();
            Lease leads = soon(first);
            assertFalse(second.isDone());
            leads.close();
            Lease last = soon(second);
            assertTrue(last.fencingToken() > leads.fencingToken());
            assertTrue(leads.fencingToken() > lease.fencingToken());
            assertEquals(2, places.get(0).position());
            assertEquals(2, places.get(0).queueLength());
            List<Integer> positions = places.stream().map(QueuePlace::position).toList();
            assertEquals(positions.stream().sorted((a, b) -> b - a).toList(), positions);
        }
    }

    @ParameterizedTest
    @EnumSource
    void aHookForTheQueueIsCalledByTheThreadThatWaits(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            Lease lease = site.client("one").acquire("a");
            List<Thread> callers = new CopyOnWriteArrayList<>();
            LockRequest waits = site.client("other")
                    .lock("a")
                    .waitUpTo(Duration.ofSeconds(5))
                    .onQueue(place -> {
                        callers.add(Thread.currentThread());
                        throw new ArithmeticException("of the hook");
                    });
            assertThrows(ArithmeticException.class, waits::acquire);
            assertEquals(List.of(Thread.currentThread()), callers);
            CompletableFuture<Lease> call = waits.acquireAsync();
            Exception failed = assertThrows(Exception.class, () -> call.get(5, TimeUnit.SECONDS));
            assertEquals(ArithmeticException.class, failed.getCause().getClass());
            assertNotEquals(Thread.currentThread(), callers.get(1));
            waitsFor(site.client("third"), "a", 0);
            assertTrue(lease.isValid());
        }
    }

    @ParameterizedTest
    @EnumSource
    void anInterruptGivesUpTheWait(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient one = site.client("one");
            LeaseholdClient other = site.client("other");
            Lease lease = one.acquire("a");
            CompletableFuture<Throwable> ended = new CompletableFuture<>();
            Thread waiter = new Thread(() -> {
                try {
                    other.acquire("a");
                    ended.complete(null);
                } catch (InterruptedException e) {
                    ended.complete(e);
                }
            });
            waiter.start();
            waitsFor(one, "a", 1);
            waiter.interrupt();
            assertEquals(InterruptedException.class, soon(ended).getClass());
            waitsFor(one, "a", 0);
            lease.close();
            takes(one, "a");
        }
    }

    @ParameterizedTest
    @EnumSource
    void whoeverEndsTheFutureGivesUpTheWait(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient one = site.client("one");
            Lease lease = one.acquire("a");
            CompletableFuture<Lease> cancelled = site.client("other").lock("a").acquireAsync();
            waitsFor(one, "a", 1);
            assertTrue(cancelled.cancel(true));
            waitsFor(one, "a", 0);
            CompletableFuture<Lease> late =
                    site.client("third").lock("a").acquireAsync().orTimeout(50, TimeUnit.MILLISECONDS);
            assertThrows(Exception.class, late::join);
            waitsFor(one, "a", 0);
            lease.close();
            takes(one, "a");
        }
    }

    @ParameterizedTest
    @EnumSource
    void anInterruptedThreadGivesBackWithoutWaiting(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient one = site.client("one");
            Lease lease = one.acquire("a");
            Thread.currentThread().interrupt();
            lease.close();
            assertTrue(Thread.interrupted(), "it stays interrupted");
            takes(one, "a");
        }
    }

    @ParameterizedTest
    @EnumSource
    void aTryIsRepeatedAsOftenAsWanted(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            Lease lease = site.client("one").acquire("a");
            LockRequest tries = site.client("other").lock("a");
            assertTrue(tries.tryAcquire(3, Duration.ofMillis(10)).isEmpty());
            assertTrue(soon(tries.tryAcquireAsync()).isEmpty());
            CompletableFuture<Void> released = CompletableFuture.runAsync(
                    lease::close, CompletableFuture.delayedExecutor(100, TimeUnit.MILLISECONDS));
            Optional<Lease> taken = tries.tryAcquire(500, Duration.ofMillis(20));
            soon(released);
            assertTrue(taken.orElseThrow().isValid());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aShutdownEndsEverything(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient client = site.client("one");
            LeaseholdClient other = site.client("other");
            Lease held = other.acquire("b");
            Lease lease = client.acquire("a");
            CompletableFuture<Loss> lost = lease.lost();
            CompletableFuture<Lease> waits = client.lock("b").acquireAsync();
            waitsFor(other, "b", 1);
            client.close();
            assertEquals(LostReason.CLOSED, soon(lost).reason());
            assertFalse(lease.isValid());
            Exception failed = assertThrows(Exception.class, () -> waits.get(5, TimeUnit.SECONDS));
            assertEquals(ClosedException.class, failed.getCause().getClass());
            takes(other, "a");
            waitsFor(other, "b", 0);
            assertTrue(held.isValid());
            assertThrows(ClosedException.class, () -> client.acquire("c"));
            assertThrows(ClosedException.class, () -> client.get("c"));
            client.close();
            LeaseLostException late = assertThrows(LeaseLostException.class, lease::close);
            assertEquals(LostReason.CLOSED, late.reason());
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatIsNotLegalIsRefused(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient client = site.client("one");
            assertThrows(InvalidException.class, () -> client.lockAll());
            assertThrows(IllegalArgumentException.class, () -> client.lock("a").ttl(Duration.ofSeconds(-1)));
            assertThrows(IllegalArgumentException.class, () -> client.lock("a").waitUpTo(Duration.ofNanos(-1)));
        }
    }

    @ParameterizedTest
    @EnumSource
    void anElectionHasOneLeader(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            Election one = site.client("one").election("job");
            Election other = site.client("other").election("job");
            LeaderObserver observer = other.observe();
            assertTrue(observer.next().isEmpty());
            Lease leads = one.campaign();
            CompletableFuture<Lease> follows = other.campaignAsync();
            assertEquals("one", observer.next().orElseThrow().owner());
            leads.close();
            Lease next = soon(follows);
            assertEquals(next.leaseId(), observer.next().orElseThrow().leaseId());
        }
    }
}
