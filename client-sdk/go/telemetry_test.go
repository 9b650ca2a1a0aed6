// What the client tells of itself to the program's tracer and meter.

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

// The program's own, for all tests.
var (
	spans    = tracetest.NewSpanRecorder()
	measured = metric.NewManualReader()
)

func init() {
	otel.SetTextMapPropagator(propagation.TraceContext{})
	otel.SetTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(spans)))
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(measured)))
}

func TestACallIsASpan(t *testing.T) {
	t.Parallel()
	client, name := clientOf(t, sharedBroker(t).URL()), lockName(t)
	lease := lock(t, client, name)
	_, err := client.Lock(t.Context(), name, leasehold.WithWait(100*time.Millisecond))
	fails(t, err, leasehold.ErrWaitTimeout)
	is(t, isTaken(t, client, name), "two have it")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = client.Lock(ctx, name)
	fails(t, err, context.DeadlineExceeded)
	release(t, lease)
	var outcomes, events []string
	for _, span := range spans.Ended() {
		if !slices.Contains(span.Attributes(), attribute.StringSlice("locks", []string{"default/" + name})) {
			continue
		}
		is(t, span.Name() == "lock.acquire", "%s", span.Name())
		for _, one := range span.Attributes() {
			if one.Key == "outcome" {
				outcomes = append(outcomes, one.Value.AsString())
			}
		}
		for _, one := range span.Events() {
			events = append(events, one.Name)
		}
	}
	is(t, slices.Equal(outcomes, []string{"granted", "wait_timeout", "held", "cancelled"}), "%v", outcomes)
	want := []string{"granted", "queued", "not granted", "not granted", "queued", "not granted"}
	is(t, slices.Equal(events, want), "%v", events)
}

func TestWaitsAndHoldsAreMeasured(t *testing.T) {
	t.Parallel()
	broker := startFake(t)
	client := broker.Client("one")
	release(t, lock(t, client, "a"))
	lost(t, func() *leasehold.Lease {
		lease := lock(t, client, "a")
		broker.Lose("a")
		return lease
	}())
	for _, one := range []struct{ name, outcome string }{
		{"leasehold.client.wait.duration", "granted"},
		{"leasehold.client.hold.duration", "released"},
		{"leasehold.client.hold.duration", "lost"},
	} {
		for until := time.Now().Add(soon); count(t, one.name, one.outcome) == 0; {
			is(t, time.Now().Before(until), "no %s of %s", one.outcome, one.name)
		}
	}
}

func count(t *testing.T, name, outcome string) uint64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	ok(t, measured.Collect(t.Context(), &all))
	for _, scope := range all.ScopeMetrics {
		for _, one := range scope.Metrics {
			histogram, found := one.Data.(metricdata.Histogram[float64])
			if one.Name != name || !found {
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
