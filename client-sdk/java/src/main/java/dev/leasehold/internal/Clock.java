package dev.leasehold.internal;

import java.io.FileInputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * The clock for lease validity, in nanoseconds since an arbitrary time. It keeps running while the machine is
 * suspended. Java has no call for such a clock, so that on Linux it is read from a file of the kernel, which has a
 * resolution of 10 ms. Readings are rounded so that a lease is never valid for too long.
 */
public final class Clock {
    private static final String UPTIME = "/proc/uptime";
    /**
     * Largest amount by which a reading may be too early: the resolution of the file, which exceeds the noise of the
     * other clocks.
     */
    private static final long RESOLUTION = Durations.millisToNanos(10);

    private static final boolean HAS_UPTIME = Files.isReadable(Path.of(UPTIME));
    private static final SuspendAwareClock SUSPEND_AWARE = new SuspendAwareClock();

    /**
     * Last reading of the file, from which time is extrapolated while the file cannot be opened for lack of file
     * descriptors.
     */
    private static volatile Reading lastReading = new Reading(0, SUSPEND_AWARE.advance());

    private Clock() {}

    private record Reading(long uptime, long elapsed) {}

    /** Returns the time for an event that follows: never later than the actual time. */
    public static long sendTime() {
        return HAS_UPTIME ? uptime() : SUSPEND_AWARE.advance();
    }

    /** Returns the time for a check: never earlier than the actual time. */
    public static long now() {
        return checkTime(sendTime());
    }

    /** Converts a reading of {@link #sendTime} into the time for a check. */
    static long checkTime(long reading) {
        return reading + RESOLUTION;
    }

    private static long uptime() {
        long elapsed = SUSPEND_AWARE.advance();
        // The file is opened for each reading, because the kernel generates its content when the file is opened.
        try (FileInputStream file = new FileInputStream(UPTIME)) {
            byte[] text = new byte[64];
            long uptime = parseCentiseconds(text, file.read(text)) * RESOLUTION;
            lastReading = new Reading(uptime, elapsed);
            return uptime;
        } catch (IOException e) {
            Reading last = lastReading;
            return last.uptime + elapsed - last.elapsed;
        }
    }

    /** Parses the first number of the file, which has two digits after the point, as hundredths of a second. */
    static long parseCentiseconds(byte[] text, int length) throws IOException {
        long centiseconds = 0;
        for (int index = 0; index < length; index++) {
            if (text[index] == ' ') {
                return centiseconds;
            }
            if (text[index] != '.') {
                centiseconds = centiseconds * 10 + Character.digit(text[index], 10);
            }
        }
        throw new IOException("cannot parse " + UPTIME);
    }
}
