package dev.leasehold.internal;

import java.time.Duration;
import java.util.concurrent.TimeUnit;

/** Spans of time in nanoseconds, and as the API has them. */
public final class Times {
    /** As good as for ever, and nothing that is added to it flows over. */
    public static final long MAX = Long.MAX_VALUE / 4;

    private Times() {}

    static long millis(long millis) {
        return TimeUnit.MILLISECONDS.toNanos(millis);
    }

    /** What is longer than {@link #MAX} is that. */
    public static long nanos(Duration time) {
        return time.compareTo(Duration.ofNanos(MAX)) > 0 ? MAX : time.toNanos();
    }

    /** A span of time; what is unset or negative is none. */
    static Duration of(com.google.protobuf.Duration time) {
        Duration found = Duration.ofSeconds(time.getSeconds(), time.getNanos());
        return found.isNegative() ? Duration.ZERO : found;
    }

    static long nanosOf(com.google.protobuf.Duration time) {
        return nanos(of(time));
    }

    /** As the broker reads it. Fails with IllegalArgumentException if it is negative. */
    public static com.google.protobuf.Duration proto(Duration time) {
        if (time.isNegative()) {
            throw new IllegalArgumentException("not a span of time: " + time);
        }
        return com.google.protobuf.Duration.newBuilder()
                .setSeconds(time.getSeconds())
                .setNanos(time.getNano())
                .build();
    }
}
