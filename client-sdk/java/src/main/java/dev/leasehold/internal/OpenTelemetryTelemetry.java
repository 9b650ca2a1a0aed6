package dev.leasehold.internal;

import dev.leasehold.QueuePosition;
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

/** Telemetry by the program's global OpenTelemetry, if the program has set it. */
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
    AcquireTelemetry start(List<String> locks, long waitNanos) {
        OpenTelemetry openTelemetry = GlobalOpenTelemetry.getOrNoop();
        Span span = openTelemetry
                .getTracer(SCOPE)
                .spanBuilder("lock.acquire")
                .setAttribute(LOCKS, locks)
                .setAttribute(WAIT, waitNanos / 1e9)
                .startSpan();
        return new SpanTelemetry(openTelemetry, span);
    }

    @Override
    void recordHoldDuration(long nanos, boolean isLost) {
        record(
                "leasehold.client.hold.duration",
                "Time from a grant to the end of its lease, by outcome.",
                nanos,
                isLost ? "lost" : "released");
    }

    private static void record(String name, String description, long nanos, String outcome) {
        // OpenTelemetry returns the same instrument for the same name.
        GlobalOpenTelemetry.getOrNoop()
                .getMeter(SCOPE)
                .histogramBuilder(name)
                .setUnit("s")
                .setDescription(description)
                .build()
                .record(nanos / 1e9, Attributes.of(OUTCOME, outcome));
    }

    private static final class SpanTelemetry implements AcquireTelemetry {
        private final long startedAt = System.nanoTime();
        private final OpenTelemetry openTelemetry;
        private final Span span;

        SpanTelemetry(OpenTelemetry openTelemetry, Span span) {
            this.openTelemetry = openTelemetry;
            this.span = span;
        }

        @Override
        public String traceparent() {
            Map<String, String> headers = new HashMap<>();
            Context context = Context.current().with(span);
            openTelemetry.getPropagators().getTextMapPropagator().inject(context, headers, (carrier, key, value) -> {
                if (carrier != null) {
                    carrier.put(key, value);
                }
            });
            return headers.getOrDefault("traceparent", "");
        }

        @Override
        public void recordQueued(QueuePosition position) {
            Attributes attributes =
                    Attributes.of(POSITION, (long) position.position(), QUEUE_LENGTH, (long) position.queueLength());
            span.addEvent("queued", attributes);
        }

        @Override
        public void recordGranted(String leaseId) {
            span.addEvent("granted", Attributes.of(LEASE_ID, leaseId));
            finish("granted");
        }

        @Override
        public void recordFailed(AcquireException error) {
            // A held lock is a regular result, and no error of the span.
            if (error != null) {
                span.addEvent("not granted", Attributes.of(ERROR, String.valueOf(error.getMessage())));
            }
            finish(outcome(error));
        }

        private static String outcome(AcquireException error) {
            if (error == null) {
                return "cancelled";
            }
            if (error instanceof HeldException) {
                return "held";
            }
            return error instanceof WaitTimeoutException ? "wait_timeout" : "failed";
        }

        private void finish(String outcome) {
            span.setAttribute(OUTCOME, outcome);
            span.end();
            record(
                    "leasehold.client.wait.duration",
                    "Time from a call to its response, by outcome.",
                    System.nanoTime() - startedAt,
                    outcome);
        }
    }
}
