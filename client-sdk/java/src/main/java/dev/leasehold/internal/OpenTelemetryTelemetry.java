package dev.leasehold.internal;

import dev.leasehold.QueuePlace;
import dev.leasehold.error.AcquireException;
import dev.leasehold.error.HeldException;
import dev.leasehold.error.WaitTimeoutException;
import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.context.Context;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** By the program's global OpenTelemetry, once it has set one. */
final class OpenTelemetryTelemetry extends Telemetry {
    private static final String SCOPE = "leasehold";
    private static final AttributeKey<String> OUTCOME = AttributeKey.stringKey("outcome");
    private static final AttributeKey<List<String>> LOCKS = AttributeKey.stringArrayKey("locks");
    private static final AttributeKey<Double> WAIT = AttributeKey.doubleKey("wait");
    private static final AttributeKey<Long> POSITION = AttributeKey.longKey("position");
    private static final AttributeKey<Long> QUEUE_LENGTH = AttributeKey.longKey("queue_length");
    private static final AttributeKey<String> LEASE_ID = AttributeKey.stringKey("lease_id");
    private static final AttributeKey<String> ERROR = AttributeKey.stringKey("error");

    @Override
    Acquiring begin(List<String> locks, long wait) {
        OpenTelemetry program = GlobalOpenTelemetry.getOrNoop();
        Span span = program.getTracer(SCOPE)
                .spanBuilder("lock.acquire")
                .setAttribute(LOCKS, locks)
                .setAttribute(WAIT, wait / 1e9)
                .startSpan();
        return new Spanned(program, span);
    }

    @Override
    void end(long time, boolean isLost) {
        record(
                "leasehold.client.hold.duration",
                "From a grant to the end of its lease, by outcome.",
                time,
                isLost ? "lost" : "released");
    }

    private static void record(String name, String description, long time, String outcome) {
        // The same instrument each time, as its name says.
        GlobalOpenTelemetry.getOrNoop()
                .getMeter(SCOPE)
                .histogramBuilder(name)
                .setUnit("s")
                .setDescription(description)
                .build()
                .record(time / 1e9, Attributes.of(OUTCOME, outcome));
    }

    private static final class Spanned implements Acquiring {
        private final long begun = System.nanoTime();
        private final OpenTelemetry program;
        private final Span span;

        Spanned(OpenTelemetry program, Span span) {
            this.program = program;
            this.span = span;
        }

        @Override
        public String traceparent() {
            Map<String, String> headers = new HashMap<>();
            Context context = Context.current().with(span);
            program.getPropagators().getTextMapPropagator().inject(context, headers, (carrier, key, value) -> {
                if (carrier != null) {
                    carrier.put(key, value);
                }
            });
            return headers.getOrDefault("traceparent", "");
        }

        @Override
        public void queued(QueuePlace place) {
            Attributes where =
                    Attributes.of(POSITION, (long) place.position(), QUEUE_LENGTH, (long) place.queueLength());
            span.addEvent("queued", where);
        }

        @Override
        public void granted(String leaseId) {
            span.addEvent("granted", Attributes.of(LEASE_ID, leaseId));
            ended("granted");
        }

        @Override
        public void failed(AcquireException why) {
            // That a lock is held is an answer, and no error of the span.
            if (why != null) {
                span.addEvent("not granted", Attributes.of(ERROR, String.valueOf(why.getMessage())));
            }
            ended(outcome(why));
        }

        private static String outcome(AcquireException why) {
            if (why == null) {
                return "cancelled";
            }
            if (why instanceof HeldException) {
                return "held";
            }
            return why instanceof WaitTimeoutException ? "wait_timeout" : "failed";
        }

        private void ended(String outcome) {
            span.setAttribute(OUTCOME, outcome);
            span.end();
            record(
                    "leasehold.client.wait.duration",
                    "From a call to its answer, by outcome.",
                    System.nanoTime() - begun,
                    outcome);
        }
    }
}
