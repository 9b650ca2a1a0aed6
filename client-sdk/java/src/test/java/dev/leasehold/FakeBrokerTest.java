package dev.leasehold;

import static dev.leasehold.support.Line.soon;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.StoreRecoveringException;
import dev.leasehold.testing.FakeBroker;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** The fake's switches, and what a loss does to the code that holds the lock. */
class FakeBrokerTest {
    private final FakeBroker broker = new FakeBroker();
    private final LeaseholdClient client = broker.client("one");

    @AfterEach
    void end() {
        client.close();
        broker.close();
    }

    @Test
    void aLostLockIsTold() throws Exception {
        Lease lease = client.acquire("orders/42");
        CompletableFuture<Loss> told = new CompletableFuture<>();
        lease.onLost(told::complete);
        CompletableFuture<Loss> lost = lease.lost();
        assertEquals(1, broker.lose("orders/42"));
        assertFalse(lease.isValid());
        assertEquals(new Loss(LostReason.STORE_LOST), soon(told));
        assertEquals(new Loss(LostReason.STORE_LOST), soon(lost));
        CompletableFuture<Loss> late = new CompletableFuture<>();
        lease.onLost(late::complete);
        assertEquals(LostReason.STORE_LOST, soon(late).reason());
        assertEquals(0, broker.holderCount("orders/42"));
    }

    @Test
    void aBlockWhoseLockWasLostSaysSoAtItsEnd() {
        LeaseLostException lost = assertThrows(LeaseLostException.class, () -> {
            try (Lease lease = client.acquire("a")) {
                broker.lose(Target.of("a"), new Loss(LostReason.REVOKED, "by hand"));
                assertThrows(LeaseLostException.class, lease::check);
            }
        });
        assertEquals(new Loss(LostReason.REVOKED, "by hand"), lost.loss());
    }

    @Test
    void theErrorOfABlockGoesBeforeItsLoss() {
        ArithmeticException error = assertThrows(ArithmeticException.class, () -> {
            try (Lease lease = client.acquire("a")) {
                broker.lose("a");
                throw new ArithmeticException(lease.leaseId());
            }
        });
        assertEquals(LeaseLostException.class, error.getSuppressed()[0].getClass());
    }

    @Test
    void aLostLeaseGivesNothingBack() throws Exception {
        LeaseholdClient other = broker.client("other");
        Lease lost = client.acquire("a");
        broker.lose("a");
        Lease held = other.acquire("a");
        assertThrows(LeaseLostException.class, lost::close);
        lost.close();
        assertTrue(held.isValid());
        assertEquals(1, broker.holderCount("a"));
    }

    @Test
    void aHookMayBlockAndIsNotToldOfARelease() throws Exception {
        List<String> told = new CopyOnWriteArrayList<>();
        CompletableFuture<Void> begun = new CompletableFuture<>();
        CompletableFuture<Void> goOn = new CompletableFuture<>();
        client.acquire("a").onLost(loss -> {
            told.add("a");
            begun.complete(null);
            goOn.join();
        });
        Lease quiet = client.acquire("b").onLost(loss -> told.add("b"));
        CompletableFuture<Loss> never = quiet.lost();
        quiet.close();
        assertTrue(never.isCompletedExceptionally());
        broker.lose("a");
        broker.lose("b");
        soon(begun);
        client.acquire("c").close();
        goOn.complete(null);
        assertEquals(List.of("a"), told, "once, and not for a release");
    }

    @Test
    void aCallIsRefusedAsABrokerInTroubleDoes() throws Exception {
        broker.refuse("a", new StoreRecoveringException("wait", Duration.ofSeconds(3)));
        StoreRecoveringException refused = assertThrows(StoreRecoveringException.class, () -> client.acquire("a"));
        assertEquals(Duration.ofSeconds(3), refused.retryAfter().orElseThrow());
        client.acquire("a").close();
        assertEquals(0, broker.queueLength("a"));
    }

    @Test
    void theNextInLineHasALostLockAtOnce() throws Exception {
        client.acquire("a");
        CompletableFuture<Lease> next = broker.client("other").lock("a").acquireAsync();
        while (broker.queueLength("a") == 0) {
            Thread.onSpinWait();
        }
        broker.lose("a");
        assertTrue(soon(next).isValid());
    }
}
