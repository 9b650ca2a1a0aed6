package dev.leasehold.internal;

import dev.leasehold.QueuePosition;
import dev.leasehold.error.AcquireException;
import java.util.List;

/**
 * Telemetry of the client by OpenTelemetry, if the program has it: a span for each acquire, the trace context for the
 * broker, and the durations of waits and holds.
 */
public abstract class Telemetry {
    private static final Telemetry INSTANCE = detect();

    /** Telemetry of one acquire. */
    public interface AcquireTelemetry {
        /** Returns the trace context of the call, as in the W3C header of this name; empty if there is none. */
        default String traceparent() {
            return "";
        }

        /** Records a queue position. */
        default void recordQueued(QueuePosition position) {}

        /** Records the grant. */
        default void recordGranted(String leaseId) {}

        /** Records a failure. {@code error} is null if the caller has cancelled the call. */
        default void recordFailed(AcquireException error) {}
    }

    /** Starts the telemetry of an acquire. Called by the thread of the caller. */
    public static AcquireTelemetry startAcquire(List<String> locks, long waitNanos) {
        return INSTANCE.start(locks, waitNanos);
    }

    /** Records the duration of a hold, from its grant to its release or loss. */
    static void recordHold(long nanos, boolean isLost) {
        INSTANCE.recordHoldDuration(nanos, isLost);
    }

    abstract AcquireTelemetry start(List<String> locks, long waitNanos);

    abstract void recordHoldDuration(long nanos, boolean isLost);

    private static Telemetry detect() {
        try {
            Class.forName("io.opentelemetry.api.GlobalOpenTelemetry");
            return new OpenTelemetryTelemetry();
        } catch (ClassNotFoundException e) {
            return new NoTelemetry();
        }
    }

    private static final class NoTelemetry extends Telemetry {
        private static final AcquireTelemetry NO_OPERATION = new AcquireTelemetry() {};

        @Override
        AcquireTelemetry start(List<String> locks, long waitNanos) {
            return NO_OPERATION;
        }

        @Override
        void recordHoldDuration(long nanos, boolean isLost) {
            // Telemetry is off.
        }
    }
}
