package dev.leasehold;

import static dev.leasehold.support.Conditions.awaitResult;
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

/** Tests of the fake broker, and of the effect of a lost lease on the code that holds it. */
class FakeBrokerTest {
    private final FakeBroker broker = new FakeBroker();
    private final LeaseholdClient client = broker.client("one");

    @AfterEach
    void closeAll() {
        client.close();
        broker.close();
    }

    @Test
    void aLostLockIsReported() throws Exception {
        Lease lease = client.acquire("orders/42");
        CompletableFuture<Loss> reported = new CompletableFuture<>();
        lease.onLost(reported::complete);
        CompletableFuture<Loss> lost = lease.lost();
        assertEquals(1, broker.lose("orders/42"));
        assertFalse(lease.isValid());
        assertEquals(new Loss(LostReason.STORE_LOST), awaitResult(reported));
        assertEquals(new Loss(LostReason.STORE_LOST), awaitResult(lost));
        CompletableFuture<Loss> lateHook = new CompletableFuture<>();
        lease.onLost(lateHook::complete);
        assertEquals(LostReason.STORE_LOST, awaitResult(lateHook).reason());
        assertEquals(0, broker.holderCount("orders/42"));
    }

    @Test
    void aTryBlockWithALostLockThrowsAtItsEnd() {
        LeaseLostException lost = assertThrows(LeaseLostException.class, () -> {
            try (Lease lease = client.acquire("a")) {
                broker.lose(Target.of("a"), new Loss(LostReason.REVOKED, "by hand"));
                assertThrows(LeaseLostException.class, lease::check);
            }
        });
        assertEquals(new Loss(LostReason.REVOKED, "by hand"), lost.loss());
    }

    @Test
    void theExceptionOfATryBlockSuppressesTheLoss() {
        ArithmeticException error = assertThrows(ArithmeticException.class, () -> {
            try (Lease lease = client.acquire("a")) {
                broker.lose("a");
                throw new ArithmeticException(lease.leaseId());
            }
        });
        assertEquals(LeaseLostException.class, error.getSuppressed()[0].getClass());
    }

    @Test
    void aLostLeaseReleasesNothing() throws Exception {
        LeaseholdClient otherClient = broker.client("other");
        Lease lost = client.acquire("a");
        broker.lose("a");
        Lease held = otherClient.acquire("a");
        assertThrows(LeaseLostException.class, lost::close);
        lost.close();
        assertTrue(held.isValid());
        assertEquals(1, broker.holderCount("a"));
    }

    @Test
    void aHookMayBlockAndIsNotCalledForARelease() throws Exception {
        List<String> called = new CopyOnWriteArrayList<>();
        CompletableFuture<Void> started = new CompletableFuture<>();
        CompletableFuture<Void> unblocked = new CompletableFuture<>();
        client.acquire("a").onLost(loss -> {
            called.add("a");
            started.complete(null);
            unblocked.join();
        });
        Lease released = client.acquire("b").onLost(loss -> called.add("b"));
        CompletableFuture<Loss> lost = released.lost();
        released.close();
        assertTrue(lost.isCompletedExceptionally());
        broker.lose("a");
        broker.lose("b");
        awaitResult(started);
        client.acquire("c").close();
        unblocked.complete(null);
        assertEquals(List.of("a"), called, "called once, and not for a release");
    }

    @Test
    void refuseFailsTheNextCall() throws Exception {
        broker.refuse("a", new StoreRecoveringException("wait", Duration.ofSeconds(3)));
        StoreRecoveringException recovering = assertThrows(StoreRecoveringException.class, () -> client.acquire("a"));
        assertEquals(Duration.ofSeconds(3), recovering.retryAfter().orElseThrow());
        client.acquire("a").close();
        assertEquals(0, broker.queueLength("a"));
    }

    @Test
    void theNextWaiterIsGrantedALostLockImmediately() throws Exception {
        client.acquire("a");
        CompletableFuture<Lease> next = broker.client("other").lock("a").acquireAsync();
        while (broker.queueLength("a") == 0) {
            Thread.onSpinWait();
        }
        broker.lose("a");
        assertTrue(awaitResult(next).isValid());
    }
}
