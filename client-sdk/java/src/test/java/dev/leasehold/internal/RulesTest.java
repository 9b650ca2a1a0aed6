package dev.leasehold.internal;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.error.OtherException;
import dev.leasehold.v1.LeaseEnded;
import dev.leasehold.v1.Refused;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** The rules that no broker is needed for: trust, clocks, and what is not known. */
class RulesTest {
    private static final long TTL = Times.millis(10_000);

    @Test
    void trustEndsAMarginBeforeTheValidity() {
        assertEquals(Times.millis(250), Trust.margin(Times.millis(1_000)));
        assertEquals(Times.millis(500), Trust.margin(Times.millis(2_000)));
        assertEquals(Times.millis(500), Trust.margin(Times.millis(5_000)));
        assertEquals(Times.millis(6_000), Trust.margin(Times.millis(60_000)));
        long now = Clock.now();
        Trust trust = new Trust(now + TTL, TTL);
        assertNull(trust.loss(now + Times.millis(8_999)));
        assertEquals(LostReason.EXPIRED, trust.loss(now + Times.millis(9_000)).reason());
    }

    @Test
    void trustThatHasPassedIsNotExtendedThoughNobodyHasLooked() {
        AtomicInteger told = new AtomicInteger();
        Trust trust = new Trust(Clock.now() - 1, TTL);
        trust.onEnd(told::incrementAndGet);
        assertFalse(trust.extend(Clock.now() + TTL, TTL));
        assertEquals(LostReason.EXPIRED, trust.loss().reason());
        assertEquals(0, trust.remaining());
        trust.end(new Loss(LostReason.REVOKED));
        assertEquals(LostReason.EXPIRED, trust.loss().reason(), "only the first reason stays");
        assertEquals(1, told.get(), "told once");
    }

    @Test
    void anOlderConfirmationShortensNothing() {
        long now = Clock.now();
        Trust trust = new Trust(now + TTL, TTL);
        assertTrue(trust.extend(now + TTL / 2, TTL));
        assertTrue(trust.remaining() > TTL / 2);
    }

    @Test
    void theTimeIsRoundedToTheSafeSide() throws Exception {
        long sent = Clock.sent();
        String text = Files.readString(Path.of("/proc/uptime"));
        long kernel = Long.parseLong(text.substring(0, text.indexOf(' ')).replace(".", "")) * Times.millis(10);
        long now = Clock.now();
        assertTrue(sent <= kernel && now >= kernel + Times.millis(10), sent + " " + kernel + " " + now);
        assertTrue(now - sent >= Times.millis(10));
        assertEquals(12_345_67, Clock.centiseconds("12345.67 99.01\n".getBytes(StandardCharsets.UTF_8), 15));
        assertThrows(IOException.class, () -> Clock.centiseconds(new byte[1], -1));
    }

    @Test
    void aLookAtTheTimeIsCheap() {
        long begun = System.nanoTime();
        int looks = 2_000;
        for (int look = 0; look < looks; look++) {
            Clock.now();
        }
        long each = (System.nanoTime() - begun) / looks;
        assertTrue(each < Times.millis(1), each + " ns");
    }

    @Test
    void theWallClockOnlyAddsTime() {
        LargerElapsed clock = new LargerElapsed(0, 0);
        long second = Times.millis(1_000);
        assertEquals(second, clock.advance(second, second));
        assertEquals(7 * second, clock.advance(2 * second, 7 * second), "it was suspended for 5 s");
        assertEquals(8 * second, clock.advance(3 * second, 0), "set back");
        assertEquals(9 * second, clock.advance(4 * second, second));
        long noise = LargerElapsed.NOISE / 2;
        for (int step = 0; step < 100; step++) {
            clock.advance(4 * second, second + noise);
            clock.advance(4 * second, second - noise);
        }
        assertEquals(9 * second, clock.advance(4 * second, second), "noise adds up to nothing");
    }

    @Test
    void whatIsNotKnownIsTolerated() {
        Refused refused = Refused.newBuilder()
                .setReasonValue(9_999)
                .setCode(9_999)
                .setMessage("new")
                .build();
        assertInstanceOf(OtherException.class, Reading.refused(refused));
        assertFalse(Reading.isOpen(refused));
        LeaseEnded ended =
                LeaseEnded.newBuilder().setReasonValue(9_999).setMessage("new").build();
        assertEquals(new Loss(LostReason.OTHER, "new"), Reading.ended(ended));
    }

    @Test
    void timesDoNotFlowOver() {
        assertEquals(Times.MAX, Times.nanos(Duration.ofSeconds(Long.MAX_VALUE)));
        com.google.protobuf.Duration negative =
                com.google.protobuf.Duration.newBuilder().setSeconds(-1).build();
        assertEquals(Duration.ZERO, Times.of(negative));
        assertThrows(IllegalArgumentException.class, () -> Times.proto(Duration.ofNanos(-1)));
    }
}
