package dev.leasehold;

import static dev.leasehold.support.Conditions.awaitQueueLength;
import static dev.leasehold.support.Conditions.awaitResult;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.LimitMismatchException;
import dev.leasehold.error.UpgradeDeniedException;
import dev.leasehold.support.Fixture;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Tests of shared locks, semaphores, several locks and re-entry, with a real broker and with the fake one. */
class LockModesTest {
    @ParameterizedTest
    @EnumSource
    void sharedHoldersCoexistAndDoNotOvertakeAnExclusiveWaiter(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            LeaseholdClient otherClient = fixture.client("other");
            Lease first = client.lock("a").shared().acquire();
            Lease second = otherClient.lock("a").shared().acquire();
            CompletableFuture<Lease> writer = client.lock("a").acquireAsync();
            awaitQueueLength(otherClient, "a", 1);
            CompletableFuture<Lease> third = otherClient.lock("a").shared().acquireAsync();
            awaitQueueLength(otherClient, "a", 2);
            first.close();
            assertFalse(writer.isDone());
            second.close();
            Lease exclusive = awaitResult(writer);
            assertFalse(third.isDone(), "a shared holder beside an exclusive one");
            exclusive.close();
            assertTrue(awaitResult(third).isValid());
        }
    }

    @ParameterizedTest
    @EnumSource
    void permitsAddUpToTheLimit(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
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
    void severalLocksAreAcquiredAllOrNone(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            Lease b = client.acquire("b");
            LockRequest all = client.lockAll("a", "b", "c");
            assertTrue(all.tryAcquire().isEmpty());
            assertTrue(client.get("a").isEmpty() && client.get("c").isEmpty());
            CompletableFuture<Lease> call = all.acquireAsync();
            awaitQueueLength(client, "b", 1);
            b.close();
            Lease lease = awaitResult(call);
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
    void entriesAreReleasedInAnyOrder(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            Lease outer = client.acquire("a");
            LockRequest entry = client.lock("a").under(outer);
            Lease inner = entry.acquire();
            assertEquals(outer.leaseId(), inner.leaseId());
            assertEquals(outer.fencingToken(), inner.fencingToken());
            outer.close();
            assertTrue(inner.isValid() && !outer.isValid());
            assertTrue(client.tryAcquire("a").isEmpty(), "one entry is left");
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
    void anUpgradeIsDenied(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            Lease reader = client.lock("a").shared().acquire();
            assertThrows(
                    UpgradeDeniedException.class,
                    () -> client.lock("a").under(reader).acquire());
            assertTrue(reader.isValid());
        }
    }

    @ParameterizedTest
    @EnumSource
    void namespacesAreSeparate(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            Lease render = client.lock("a").namespace("render").acquire();
            Lease standard = client.acquire("a");
            assertEquals(List.of("render/a"), render.locks());
            assertTrue(client.get(Target.of("a").namespace("render")).isPresent());
            assertTrue(standard.isValid());
        }
    }
}
