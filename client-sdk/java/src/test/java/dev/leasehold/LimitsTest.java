package dev.leasehold;

import static dev.leasehold.support.Conditions.awaitQueueLength;
import static dev.leasehold.support.Conditions.awaitResult;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.error.InvalidException;
import dev.leasehold.error.LimitMismatchException;
import dev.leasehold.support.Broker;
import dev.leasehold.support.Fixture;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Tests of set limits of semaphores, with a real broker and with the fake one. */
class LimitsTest {
    private static Optional<PermitUsage> usage(LeaseholdClient client, String lock) throws InterruptedException {
        return client.get(lock).flatMap(LockState::permitUsage);
    }

    @ParameterizedTest
    @EnumSource
    void aSetLimitOverridesThatOfCallers(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            assertEquals(OptionalInt.empty(), client.setLimit("gpu", 2));
            assertEquals(Optional.of(new PermitUsage(2, 0, true)), usage(client, "gpu"));
            Lease first = client.lock("gpu").permits(1, 5).acquire();
            client.lock("gpu").permits(1, 7).acquire();
            assertEquals(Optional.of(new PermitUsage(2, 2, true)), usage(client, "gpu"));
            assertTrue(client.lock("gpu").permits(1, 5).tryAcquire().isEmpty(), "3 of 2");
            assertThrows(
                    LimitMismatchException.class,
                    () -> client.lock("gpu").permits(3, 5).acquire());
            assertThrows(LimitMismatchException.class, () -> client.tryAcquire("gpu"));
            CompletableFuture<Lease> waiting = client.lock("gpu").permits(2, 5).acquireAsync();
            awaitQueueLength(client, "gpu", 1);
            assertEquals(OptionalInt.of(2), client.setLimit(Target.of("gpu"), 4));
            assertTrue(awaitResult(waiting).isValid());
            assertTrue(first.isValid());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aSetLimitIsKeptWhileTheLockIsIdle(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            client.setLimit("gpu", 2);
            client.lock("gpu").permits(2, 5).acquire().close();
            assertThrows(LimitMismatchException.class, () -> client.tryAcquire("gpu"));
            assertThrows(
                    LimitMismatchException.class,
                    () -> client.lock("gpu").permits(3, 5).acquire());
            assertTrue(client.get(Target.of("gpu").namespace("render")).isEmpty());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLockInUseKeepsARemovedLimitUntilItIsIdle(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            client.setLimit("gpu", 2);
            Lease lease = client.lock("gpu").permits(1, 5).acquire();
            assertEquals(OptionalInt.of(2), client.removeLimit("gpu"));
            assertEquals(OptionalInt.empty(), client.removeLimit("gpu"));
            assertEquals(Optional.of(new PermitUsage(2, 1, false)), usage(client, "gpu"));
            assertThrows(
                    LimitMismatchException.class,
                    () -> client.lock("gpu").permits(1, 5).acquire());
            lease.close();
            assertTrue(client.get("gpu").isEmpty());
            client.lock("gpu").permits(5, 5).acquire().close();
            assertTrue(client.tryAcquire("gpu").isPresent());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLoweredLimitRevokesNothing(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            Lease three = client.lock("gpu").permits(3, 4).acquire();
            Lease one = client.lock("gpu").permits(1, 4).acquire();
            CompletableFuture<Lease> tooLarge = client.lock("gpu").permits(3, 4).acquireAsync();
            awaitQueueLength(client, "gpu", 1);
            CompletableFuture<Lease> waiting = client.lock("gpu").permits(2, 4).acquireAsync();
            awaitQueueLength(client, "gpu", 2);
            assertEquals(OptionalInt.of(4), client.setLimit("gpu", 2));
            Optional<PermitUsage> usage = usage(client, "gpu");
            assertEquals(Optional.of(new PermitUsage(2, 4, true)), usage);
            assertEquals(0, usage.orElseThrow().free());
            ExecutionException rejected =
                    assertThrows(ExecutionException.class, () -> tooLarge.get(15, TimeUnit.SECONDS));
            assertInstanceOf(LimitMismatchException.class, rejected.getCause());
            three.close();
            assertFalse(waiting.isDone());
            assertEquals(1, usage(client, "gpu").orElseThrow().free());
            assertTrue(one.isValid());
            one.close();
            assertTrue(awaitResult(waiting).isValid());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLimitIsNotSetOnALockInAnotherMode(Fixture.BrokerKind kind) throws Exception {
        try (Fixture fixture = kind.createFixture()) {
            LeaseholdClient client = fixture.client("one");
            Lease exclusive = client.acquire("a");
            client.lock("b").shared().acquire();
            assertThrows(LimitMismatchException.class, () -> client.setLimit("a", 2));
            assertThrows(LimitMismatchException.class, () -> client.setLimit("b", 2));
            assertEquals(Optional.empty(), usage(client, "a"));
            exclusive.close();
            assertEquals(OptionalInt.empty(), client.setLimit("a", 2));
        }
    }

    @Test
    void theBrokerRejectsALimitOutsideTheRange() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            assertThrows(InvalidException.class, () -> client.setLimit("gpu", 1_001));
            assertThrows(InvalidException.class, () -> client.setLimit("gpu", -1));
            assertThrows(InvalidException.class, () -> client.setLimit("gpu", 0));
            assertEquals(OptionalInt.empty(), client.setLimit("gpu", 1_000));
        }
    }
}
