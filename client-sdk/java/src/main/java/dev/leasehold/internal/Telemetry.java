package dev.leasehold.internal;

import dev.leasehold.QueuePlace;
import dev.leasehold.error.AcquireException;
import java.util.List;

/**
 * What the client tells of itself by OpenTelemetry, if the program has it: a span for each call that takes locks, the
 * trace context to the broker, and how long calls waited and locks were held.
 */
public abstract class Telemetry {
    private static final Telemetry PRESENT = present();

    /** One call that takes locks. */
    public interface Acquiring {
        /** The trace context of the call, as in the W3C header of this name; empty: none. */
        default String traceparent() {
            return "";
        }

        /** Where the call stands. */
        default void queued(QueuePlace place) {}

        /** The call has its locks. */
        default void granted(String leaseId) {}

        /** The call has nothing. Null: its caller is gone. */
        default void failed(AcquireException why) {}
    }

    /** A call begins, in the thread of its caller. */
    public static Acquiring acquire(List<String> locks, long wait) {
        return PRESENT.begin(locks, wait);
    }

    /** A lease has ended after this time. */
    static void held(long time, boolean isLost) {
        PRESENT.end(time, isLost);
    }

    abstract Acquiring begin(List<String> locks, long wait);

    abstract void end(long time, boolean isLost);

    private static Telemetry present() {
        try {
            Class.forName("io.opentelemetry.api.GlobalOpenTelemetry");
            return new OpenTelemetryTelemetry();
        } catch (ClassNotFoundException e) {
            return new None();
        }
    }

    private static final class None extends Telemetry {
        private static final Acquiring SILENT = new Acquiring() {};

        @Override
        Acquiring begin(List<String> locks, long wait) {
            return SILENT;
        }

        @Override
        void end(long time, boolean isLost) {
            // Nobody listens.
        }
    }
}
