package dev.leasehold.internal;

import java.io.FileInputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * The clock that validity is counted on, in nanoseconds since some moment in the past: it runs on while the machine is
 * suspended. Java has no call for it, so on Linux it is read from the kernel's file, which has steps; a reading is
 * rounded to the side on which a lease is trusted for less.
 */
public final class Clock {
    private static final String UPTIME = "/proc/uptime";
    /** What a reading may be late: the step of the file, and more than the noise of the other clocks. */
    private static final long STEP = Times.millis(10);

    private static final boolean HAS_UPTIME = Files.isReadable(Path.of(UPTIME));
    private static final LargerElapsed LARGER = new LargerElapsed();

    /** From the file; time goes on from here while it cannot be opened, for lack of file descriptors. */
    private static volatile Reading newest = new Reading(0, LARGER.advance());

    private Clock() {}

    private record Reading(long uptime, long elapsed) {}

    /** The time of something that is done next: never later than that. */
    public static long sent() {
        return HAS_UPTIME ? uptime() : LARGER.advance();
    }

    /** The time of a question: never earlier than that. */
    public static long now() {
        return asked(sent());
    }

    /** The time of a question, from a reading by {@link #sent}. */
    static long asked(long reading) {
        return reading + STEP;
    }

    private static long uptime() {
        long elapsed = LARGER.advance();
        // Opened anew each time, as the kernel makes the text when it is opened.
        try (FileInputStream file = new FileInputStream(UPTIME)) {
            byte[] text = new byte[64];
            long uptime = centiseconds(text, file.read(text)) * STEP;
            newest = new Reading(uptime, elapsed);
            return uptime;
        } catch (IOException e) {
            Reading last = newest;
            return last.uptime + elapsed - last.elapsed;
        }
    }

    /** Of the first number, which has two digits after the point. */
    static long centiseconds(byte[] text, int length) throws IOException {
        long found = 0;
        for (int at = 0; at < length; at++) {
            if (text[at] == ' ') {
                return found;
            }
            if (text[at] != '.') {
                found = found * 10 + Character.digit(text[at], 10);
            }
        }
        throw new IOException("no uptime");
    }
}
