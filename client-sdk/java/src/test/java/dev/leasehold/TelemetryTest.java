package dev.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.testing.FakeBroker;
import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.propagation.ContextPropagators;
import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.metrics.SdkMeterProvider;
import io.opentelemetry.sdk.metrics.data.MetricData;
import io.opentelemetry.sdk.testing.exporter.InMemoryMetricReader;
import io.opentelemetry.sdk.testing.exporter.InMemorySpanExporter;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.data.EventData;
import io.opentelemetry.sdk.trace.data.SpanData;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Isolated;

/**
 * Test of spans and metrics for a program with OpenTelemetry. Isolated, because OpenTelemetry is global to the process.
 */
@Isolated
class TelemetryTest {
    private static final AttributeKey<String> OUTCOME = AttributeKey.stringKey("outcome");

    @Test
    void acquiresCreateSpansAndMetrics() throws Exception {
        InMemorySpanExporter spans = InMemorySpanExporter.create();
        InMemoryMetricReader metrics = InMemoryMetricReader.create();
        GlobalOpenTelemetry.resetForTest();
        OpenTelemetrySdk openTelemetry = OpenTelemetrySdk.builder()
                .setTracerProvider(SdkTracerProvider.builder()
                        .addSpanProcessor(SimpleSpanProcessor.create(spans))
                        .build())
                .setMeterProvider(
                        SdkMeterProvider.builder().registerMetricReader(metrics).build())
                .setPropagators(ContextPropagators.create(W3CTraceContextPropagator.getInstance()))
                .buildAndRegisterGlobal();
        try (FakeBroker broker = new FakeBroker();
                LeaseholdClient client = broker.client("one")) {
            Lease lease = client.acquire("a");
            assertTrue(client.tryAcquire("a").isEmpty());
            lease.close();
            List<SpanData> finished = spans.getFinishedSpanItems();
            assertEquals(
                    List.of("granted", "held"),
                    finished.stream()
                            .map(span -> span.getAttributes().get(OUTCOME))
                            .toList());
            assertEquals("lock.acquire", finished.get(0).getName());
            List<String> events =
                    finished.get(0).getEvents().stream().map(EventData::getName).toList();
            assertEquals(List.of("granted"), events);
            Set<String> names = metrics.collectAllMetrics().stream()
                    .map(MetricData::getName)
                    .collect(Collectors.toSet());
            assertEquals(Set.of("leasehold.client.wait.duration", "leasehold.client.hold.duration"), names);
        } finally {
            openTelemetry.close();
            GlobalOpenTelemetry.resetForTest();
        }
    }
}
