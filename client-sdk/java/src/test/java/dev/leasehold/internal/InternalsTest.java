package dev.leasehold.internal;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Any;
import com.google.protobuf.Timestamp;
import dev.leasehold.Closure;
import dev.leasehold.ClosureCause;
import dev.leasehold.LockState;
import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.PermitUsage;
import dev.leasehold.QueuePosition;
import dev.leasehold.error.HeldException;
import dev.leasehold.error.OtherException;
import dev.leasehold.v1.Contention;
import dev.leasehold.v1.ErrorReason;
import dev.leasehold.v1.LeaseEnded;
import dev.leasehold.v1.Lock;
import dev.leasehold.v1.Owner;
import dev.leasehold.v1.Queued;
import dev.leasehold.v1.Refused;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Tests of internal classes without a broker: validity, clocks, conversions. */
class InternalsTest {
    private static final long TTL = Durations.millisToNanos(10_000);

    @Test
    void validityEndsASafetyMarginEarly() {
        assertEquals(Durations.millisToNanos(250), LeaseValidity.safetyMargin(Durations.millisToNanos(1_000)));
        assertEquals(Durations.millisToNanos(500), LeaseValidity.safetyMargin(Durations.millisToNanos(2_000)));
        assertEquals(Durations.millisToNanos(500), LeaseValidity.safetyMargin(Durations.millisToNanos(5_000)));
        assertEquals(Durations.millisToNanos(6_000), LeaseValidity.safetyMargin(Durations.millisToNanos(60_000)));
        long now = Clock.now();
        LeaseValidity validity = new LeaseValidity(now + TTL, TTL);
        assertNull(validity.loss(now + Durations.millisToNanos(8_999)));
        assertEquals(
                LostReason.EXPIRED,
                validity.loss(now + Durations.millisToNanos(9_000)).reason());
    }

    @Test
    void anExpiredValidityIsNotExtended() {
        AtomicInteger calls = new AtomicInteger();
        LeaseValidity validity = new LeaseValidity(Clock.now() - 1, TTL);
        validity.onEnd(calls::incrementAndGet);
        assertFalse(validity.extend(Clock.now() + TTL, TTL));
        assertEquals(LostReason.EXPIRED, validity.loss().reason());
        assertEquals(0, validity.remaining());
        validity.end(new Loss(LostReason.REVOKED));
        assertEquals(LostReason.EXPIRED, validity.loss().reason(), "the first reason counts");
        assertEquals(1, calls.get(), "called once");
    }

    @Test
    void anOlderConfirmationDoesNotShortenTheValidity() {
        long now = Clock.now();
        LeaseValidity validity = new LeaseValidity(now + TTL, TTL);
        assertTrue(validity.extend(now + TTL / 2, TTL));
        assertTrue(validity.remaining() > TTL / 2);
    }

    @Test
    void clockReadingsAreRoundedToTheSafeSide() throws Exception {
        long sent = Clock.sendTime();
        String text = Files.readString(Path.of("/proc/uptime"));
        long uptime =
                Long.parseLong(text.substring(0, text.indexOf(' ')).replace(".", "")) * Durations.millisToNanos(10);
        long now = Clock.now();
        assertTrue(sent <= uptime && now >= uptime + Durations.millisToNanos(10), sent + " " + uptime + " " + now);
        assertTrue(now - sent >= Durations.millisToNanos(10));
        assertEquals(12_345_67, Clock.parseCentiseconds("12345.67 99.01\n".getBytes(StandardCharsets.UTF_8), 15));
        assertThrows(IOException.class, () -> Clock.parseCentiseconds(new byte[1], -1));
    }

    @Test
    void readingTheClockIsCheap() {
        long startedAt = System.nanoTime();
        int readings = 2_000;
        for (int reading = 0; reading < readings; reading++) {
            Clock.now();
        }
        long nanosPerReading = (System.nanoTime() - startedAt) / readings;
        assertTrue(nanosPerReading < Durations.millisToNanos(1), nanosPerReading + " ns");
    }

    @Test
    void theWallClockOnlyAddsTime() {
        SuspendAwareClock clock = new SuspendAwareClock(0, 0);
        long second = Durations.millisToNanos(1_000);
        assertEquals(second, clock.advance(second, second));
        assertEquals(7 * second, clock.advance(2 * second, 7 * second), "suspended for 5 s");
        assertEquals(8 * second, clock.advance(3 * second, 0), "set back");
        assertEquals(9 * second, clock.advance(4 * second, second));
        long noise = SuspendAwareClock.NOISE / 2;
        for (int step = 0; step < 100; step++) {
            clock.advance(4 * second, second + noise);
            clock.advance(4 * second, second - noise);
        }
        assertEquals(9 * second, clock.advance(4 * second, second), "noise adds up to nothing");
    }

    @Test
    void unknownValuesAreTolerated() {
        Refused refused = Refused.newBuilder()
                .setReasonValue(9_999)
                .setCode(9_999)
                .setMessage("new")
                .build();
        assertInstanceOf(OtherException.class, Converter.fromRefused(refused));
        assertFalse(Converter.isRetryable(refused));
        LeaseEnded ended =
                LeaseEnded.newBuilder().setReasonValue(9_999).setMessage("new").build();
        assertEquals(new Loss(LostReason.OTHER, "new"), Converter.lossFromEnded(ended));
    }

    private static final dev.leasehold.v1.Closure.Builder CLOSED_BY_OPERATOR = dev.leasehold.v1.Closure.newBuilder()
            .setCause(dev.leasehold.v1.ClosureCause.CLOSURE_CAUSE_OPERATOR)
            .setOwner(Owner.newBuilder().setId("ops").setReason("database migration"))
            .setUntilTime(Timestamp.newBuilder().setSeconds(60))
            .setRemaining(Durations.toProto(Duration.ofSeconds(30)));
    private static final Closure OPERATOR_CLOSURE = new Closure(
            ClosureCause.OPERATOR, "ops", "database migration", Instant.ofEpochSecond(60), Duration.ofSeconds(30));

    private static HeldException closedException(dev.leasehold.v1.Closure.Builder closure) {
        Contention contention = Contention.newBuilder().setClosure(closure).build();
        Refused refused = Refused.newBuilder()
                .setReason(ErrorReason.ERROR_REASON_LOCK_HELD)
                .setMessage("a is closed")
                .addDetails(Any.pack(contention))
                .build();
        return assertInstanceOf(HeldException.class, Converter.fromRefused(refused));
    }

    @Test
    void theExceptionSaysByWhomTheLockIsClosed() {
        HeldException closed = closedException(CLOSED_BY_OPERATOR);
        assertEquals(Optional.of(OPERATOR_CLOSURE), closed.closure());
        assertEquals("a is closed; closed by ops (database migration)", closed.getMessage());
    }

    @Test
    void aQueuePositionHasTheClosureOfTheLock() {
        Queued.Builder queued = Queued.newBuilder().setPosition(2).setQueueLength(3);
        QueuePosition open = new QueuePosition(2, 3, List.of(), Optional.empty(), Optional.empty());
        assertEquals(open, Converter.queuePosition(queued.build()));
        QueuePosition closed = new QueuePosition(2, 3, List.of(), Optional.of(OPERATOR_CLOSURE), Optional.empty());
        assertEquals(
                closed,
                Converter.queuePosition(queued.setClosure(CLOSED_BY_OPERATOR).build()));
    }

    @Test
    void aLockStateHasTheClosureAndThePermits() {
        Lock.Builder lock = Lock.newBuilder()
                .setState(Lock.State.STATE_FREE)
                .setQueueLength(1)
                .setLastFencingToken(7);
        LockState open = new LockState(List.of(), 1, 7, Optional.empty(), Optional.empty());
        assertEquals(open, Converter.lockState(lock.build()));
        lock.setClosure(CLOSED_BY_OPERATOR)
                .setPermitUsage(dev.leasehold.v1.PermitUsage.newBuilder()
                        .setLimit(2)
                        .setUsed(5)
                        .setIsLimitSet(true));
        PermitUsage usage = new PermitUsage(2, 5, true);
        assertEquals(
                new LockState(List.of(), 1, 7, Optional.of(OPERATOR_CLOSURE), Optional.of(usage)),
                Converter.lockState(lock.build()));
        assertEquals(0, usage.free());
        assertEquals(2, new PermitUsage(7, 5, false).free());
    }

    @Test
    void aClosureOfANewerBrokerOrOfAHiddenOwnerIsAccepted() {
        HeldException closed =
                closedException(dev.leasehold.v1.Closure.newBuilder().setCauseValue(9_999));
        assertEquals(Optional.of(new Closure(ClosureCause.OTHER, "", "", null, Duration.ZERO)), closed.closure());
        assertEquals("a is closed", closed.getMessage());
    }

    @Test
    void durationConversionsDoNotOverflow() {
        assertEquals(Durations.MAX_NANOS, Durations.toNanos(Duration.ofSeconds(Long.MAX_VALUE)));
        com.google.protobuf.Duration negative =
                com.google.protobuf.Duration.newBuilder().setSeconds(-1).build();
        assertEquals(Duration.ZERO, Durations.fromProto(negative));
        assertThrows(IllegalArgumentException.class, () -> Durations.toProto(Duration.ofNanos(-1)));
    }
}
