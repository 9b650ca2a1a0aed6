package dev.leasehold;

import static dev.leasehold.support.Line.soon;
import static dev.leasehold.support.Line.waitsFor;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.LimitMismatchException;
import dev.leasehold.error.UpgradeDeniedException;
import dev.leasehold.support.Site;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Shared locks, semaphores, several locks, and locks entered again, with a broker and with the fake alike. */
class KindsTest {
    @ParameterizedTest
    @EnumSource
    void readersShareAndAWriterHasItsTurn(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient one = site.client("one");
            LeaseholdClient other = site.client("other");
            Lease first = one.lock("a").shared().acquire();
            Lease second = other.lock("a").shared().acquire();
            CompletableFuture<Lease> writer = one.lock("a").acquireAsync();
            waitsFor(other, "a", 1);
            CompletableFuture<Lease> third = other.lock("a").shared().acquireAsync();
            waitsFor(other, "a", 2);
            first.close();
            assertFalse(writer.isDone());
            second.close();
            Lease writes = soon(writer);
            assertFalse(third.isDone(), "a reader beside a writer");
            writes.close();
            assertTrue(soon(third).isValid());
        }
    }

    @ParameterizedTest
    @EnumSource
    void permitsAddUpToTheLimit(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient client = site.client("one");
            Lease three = client.lock("gpu").permits(3, 5).acquire();
            Lease two = client.lock(Target.of("gpu").permits(2)).acquire();
            assertTrue(client.lock("gpu").permits(1, 5).tryAcquire().isEmpty(), "6 of 5");
            assertThrows(
                    LimitMismatchException.class,
                    () -> client.lock("gpu").permits(1, 6).acquire());
            assertThrows(
                    LimitMismatchException.class,
                    () -> client.lock("gpu").shared().tryAcquire());
            two.close();
            assertTrue(client.lock("gpu").permits(2, 5).tryAcquire().isPresent());
            assertTrue(three.isValid());
        }
    }

    @ParameterizedTest
    @EnumSource
    void severalLocksAreTakenAllOrNone(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient client = site.client("one");
            Lease b = client.acquire("b");
            LockRequest all = client.lockAll("a", "b", "c");
            assertTrue(all.tryAcquire().isEmpty());
            assertTrue(client.get("a").isEmpty() && client.get("c").isEmpty());
            CompletableFuture<Lease> call = all.acquireAsync();
            waitsFor(client, "b", 1);
            b.close();
            Lease lease = soon(call);
            assertEquals(List.of("default/a", "default/b", "default/c"), lease.locks());
            for (String name : List.of("a", "b", "c")) {
                assertEquals(
                        lease.leaseId(),
                        client.get(name).orElseThrow().holders().get(0).leaseId());
                assertTrue(lease.fencingToken(name).orElseThrow() > 0);
            }
            lease.close();
            assertTrue(client.get("a").isEmpty()
                    && client.get("b").isEmpty()
                    && client.get("c").isEmpty());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLeaseIsEnteredAndLeftInAnyOrder(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient client = site.client("one");
            Lease outer = client.acquire("a");
            LockRequest entry = client.lock("a").under(outer);
            Lease inner = entry.acquire();
            assertEquals(outer.leaseId(), inner.leaseId());
            assertEquals(outer.fencingToken(), inner.fencingToken());
            outer.close();
            assertTrue(inner.isValid() && !outer.isValid());
            assertTrue(client.tryAcquire("a").isEmpty(), "it is entered still");
            Lease added = client.lock("b").under(inner).acquire();
            assertEquals(inner.leaseId(), added.leaseId());
            added.close();
            assertTrue(client.get("b").isEmpty());
            inner.close();
            assertTrue(client.get("a").isEmpty());
            assertThrows(LeaseLostException.class, entry::acquire);
        }
    }

    @ParameterizedTest
    @EnumSource
    void anUpgradeIsDenied(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient client = site.client("one");
            Lease reader = client.lock("a").shared().acquire();
            assertThrows(
                    UpgradeDeniedException.class,
                    () -> client.lock("a").under(reader).acquire());
            assertTrue(reader.isValid());
        }
    }

    @ParameterizedTest
    @EnumSource
    void namespacesAreApart(Site.Kind kind) throws Exception {
        try (Site site = kind.open()) {
            LeaseholdClient client = site.client("one");
            Lease render = client.lock("a").namespace("render").acquire();
            Lease standard = client.acquire("a");
            assertEquals(List.of("render/a"), render.locks());
            assertTrue(client.get(Target.of("a").namespace("render")).isPresent());
            assertTrue(standard.isValid());
        }
    }
}
