// OpenTelemetry, with the providers of the program: a span for each acquire, the trace context that is sent to the
// broker, and histograms of the wait and hold times.

package leasehold

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"leasehold.dev/sdk/internal/clock"
)

const scope = "leasehold.dev/sdk"

// metrics is the two histograms, in seconds.
type metrics struct {
	waitDuration, holdDuration metric.Float64Histogram
}

func newMetrics() (metrics, error) {
	meter := otel.Meter(scope)
	waitDuration, waitErr := meter.Float64Histogram("leasehold.client.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from an acquire to its result, by outcome."))
	holdDuration, holdErr := meter.Float64Histogram("leasehold.client.hold.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from a grant to the end of its lease, by outcome."))
	return metrics{waitDuration, holdDuration}, errors.Join(waitErr, holdErr)
}

// recordHold records the hold time of a lease that has ended.
func (m *metrics) recordHold(ctx context.Context, h *leaseHandle, isLost bool) {
	outcome := "released"
	if isLost {
		outcome = "lost"
	}
	recordDuration(ctx, m.holdDuration, h.acquiredAt, outcome)
}

func recordDuration(ctx context.Context, histogram metric.Float64Histogram, since time.Duration, outcome string) {
	histogram.Record(ctx, (clock.Now() - since).Seconds(), metric.WithAttributes(attribute.String("outcome", outcome)))
}

// acquireSpan is the telemetry of one acquire: the span lock.acquire and its start time.
type acquireSpan struct {
	ctx       context.Context
	metrics   *metrics
	startedAt time.Duration
	otelSpan  trace.Span
}

func (m *metrics) startAcquireSpan(ctx context.Context, opts *acquireOptions, wait time.Duration) *acquireSpan {
	ctx, otelSpan := otel.Tracer(scope).Start(ctx, "lock.acquire", trace.WithAttributes(
		attribute.StringSlice("locks", opts.names()), attribute.Float64("wait", wait.Seconds())))
	return &acquireSpan{ctx, m, clock.Now(), otelSpan}
}

// traceparent returns the W3C header of this name, by the program's propagator. Each call sends a separate one, since
// all calls share one stream.
func (a *acquireSpan) traceparent() string {
	carrier := propagation.MapCarrier{}
	otel.GetTextMapPropagator().Inject(a.ctx, carrier)
	return carrier["traceparent"]
}

func (a *acquireSpan) recordPosition(position QueuePosition) {
	a.otelSpan.AddEvent("queued", trace.WithAttributes(
		attribute.Int("position", position.Position), attribute.Int("queue_length", position.QueueLength)))
}

// recordResult records the result. A held lock is a result, not an error of the span.
func (a *acquireSpan) recordResult(result acquireResult) {
	outcome := "granted"
	switch {
	case errors.Is(result.err, ErrHeld):
		outcome = "held"
	case errors.Is(result.err, ErrWaitTimeout):
		outcome = "wait_timeout"
	case a.ctx.Err() != nil && errors.Is(result.err, a.ctx.Err()):
		outcome = "cancelled"
	case result.err != nil:
		outcome = "failed"
	}
	recordDuration(a.ctx, a.metrics.waitDuration, a.startedAt, outcome)
	a.otelSpan.SetAttributes(attribute.String("outcome", outcome))
	if result.err != nil {
		a.otelSpan.AddEvent("not granted", trace.WithAttributes(attribute.String("error", result.err.Error())))
		return
	}
	a.otelSpan.AddEvent("granted", trace.WithAttributes(attribute.String("lease_id", result.handle.leaseID)))
}
