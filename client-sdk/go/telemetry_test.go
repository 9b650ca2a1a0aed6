// Telemetry of the client, with the tracer and meter of the program.

package leasehold_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"leasehold.dev/sdk"
)

// Recorders of the program's spans and metrics, shared by all tests.
var (
	spanRecorder = tracetest.NewSpanRecorder()
	metricReader = metric.NewManualReader()
)

func init() {
	otel.SetTextMapPropagator(propagation.TraceContext{})
	otel.SetTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(spanRecorder)))
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(metricReader)))
}

func TestAnAcquireIsASpan(t *testing.T) {
	t.Parallel()
	client, name := clientOf(t, sharedBroker(t).URL()), lockName(t)
	lease := lock(t, client, name)
	_, err := client.Lock(t.Context(), name, leasehold.WithWait(100*time.Millisecond))
	assertErr(t, err, leasehold.ErrWaitTimeout)
	assert(t, isHeld(t, client, name), "two callers hold the lock")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = client.Lock(ctx, name)
	assertErr(t, err, context.DeadlineExceeded)
	release(t, lease)
	var outcomes, events []string
	for _, span := range spanRecorder.Ended() {
		if !slices.Contains(span.Attributes(), attribute.StringSlice("locks", []string{"default/" + name})) {
			continue
		}
		assert(t, span.Name() == "lock.acquire", "%s", span.Name())
		for _, item := range span.Attributes() {
			if item.Key == "outcome" {
				outcomes = append(outcomes, item.Value.AsString())
			}
		}
		for _, item := range span.Events() {
			events = append(events, item.Name)
		}
	}
	assert(t, slices.Equal(outcomes, []string{"granted", "wait_timeout", "held", "cancelled"}), "%v", outcomes)
	want := []string{"granted", "queued", "not granted", "not granted", "queued", "not granted"}
	assert(t, slices.Equal(events, want), "%v", events)
}

func TestWaitsAndHoldsAreMeasured(t *testing.T) {
	t.Parallel()
	broker := startTestBroker(t)
	client := broker.Client("one")
	release(t, lock(t, client, "a"))
	waitLost(t, func() *leasehold.Lease {
		lease := lock(t, client, "a")
		broker.Lose("a")
		return lease
	}())
	for _, expected := range []struct{ name, outcome string }{
		{"leasehold.client.wait.duration", "granted"},
		{"leasehold.client.hold.duration", "released"},
		{"leasehold.client.hold.duration", "lost"},
	} {
		for until := time.Now().Add(operationTimeout); sampleCount(t, expected.name, expected.outcome) == 0; {
			assert(t, time.Now().Before(until), "no %s of %s", expected.outcome, expected.name)
		}
	}
}

func sampleCount(t *testing.T, name, outcome string) uint64 {
	t.Helper()
	var metrics metricdata.ResourceMetrics
	ok(t, metricReader.Collect(t.Context(), &metrics))
	for _, scope := range metrics.ScopeMetrics {
		for _, metric := range scope.Metrics {
			histogram, ok := metric.Data.(metricdata.Histogram[float64])
			if metric.Name != name || !ok {
				continue
			}
			for _, point := range histogram.DataPoints {
				if value, _ := point.Attributes.Value("outcome"); value.AsString() == outcome {
					return point.Count
				}
			}
		}
	}
	return 0
}
