package dev.leasehold.internal;

import java.time.Duration;
import java.util.concurrent.TimeUnit;

/** Conversion of durations between nanoseconds, {@link Duration} and the types of the API. */
public final class Durations {
    /** Longest duration in nanoseconds, about 73 years. Sums of a few of them do not overflow. */
    public static final long MAX_NANOS = Long.MAX_VALUE / 4;

    private Durations() {}

    static long millisToNanos(long millis) {
        return TimeUnit.MILLISECONDS.toNanos(millis);
    }

    /** Converts a duration to nanoseconds, at most {@link #MAX_NANOS}. */
    public static long toNanos(Duration duration) {
        return duration.compareTo(Duration.ofNanos(MAX_NANOS)) > 0 ? MAX_NANOS : duration.toNanos();
    }

    /** Converts a duration of the API. An unset or negative duration becomes zero. */
    static Duration fromProto(com.google.protobuf.Duration proto) {
        Duration duration = Duration.ofSeconds(proto.getSeconds(), proto.getNanos());
        return duration.isNegative() ? Duration.ZERO : duration;
    }

    static long protoToNanos(com.google.protobuf.Duration proto) {
        return toNanos(fromProto(proto));
    }

    /** Converts a duration to the type of the API. Throws IllegalArgumentException if it is negative. */
    public static com.google.protobuf.Duration toProto(Duration duration) {
        if (duration.isNegative()) {
            throw new IllegalArgumentException("negative duration: " + duration);
        }
        return com.google.protobuf.Duration.newBuilder()
                .setSeconds(duration.getSeconds())
                .setNanos(duration.getNano())
                .build();
    }
}
