// What the client tells of itself by OpenTelemetry, to the providers that the program has set: a span for each call
// that takes locks, the trace context to the broker, and how long calls waited and locks were held.

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

// metrics are the two histograms, in seconds.
type metrics struct {
	waits, holds metric.Float64Histogram
}

func newMetrics() (metrics, error) {
	meter := otel.Meter(scope)
	waits, waitsErr := meter.Float64Histogram("leasehold.client.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("From a call to its answer, by outcome."))
	holds, holdsErr := meter.Float64Histogram("leasehold.client.hold.duration", metric.WithUnit("s"),
		metric.WithDescription("From a grant to the end of its lease, by outcome."))
	return metrics{waits, holds}, errors.Join(waitsErr, holdsErr)
}

// held notes that a lease has ended.
func (m *metrics) held(ctx context.Context, g *grip, isLost bool) {
	outcome := "released"
	if isLost {
		outcome = "lost"
	}
	record(ctx, m.holds, g.since, outcome)
}

func record(ctx context.Context, histogram metric.Float64Histogram, since time.Duration, outcome string) {
	histogram.Record(ctx, (clock.Now() - since).Seconds(), metric.WithAttributes(attribute.String("outcome", outcome)))
}

// acquiring is one call that takes locks: the span lock.acquire.
type acquiring struct {
	ctx     context.Context
	metrics *metrics
	begun   time.Duration
	span    trace.Span
}

func (m *metrics) begin(ctx context.Context, p *plan, wait time.Duration) *acquiring {
	ctx, span := otel.Tracer(scope).Start(ctx, "lock.acquire", trace.WithAttributes(
		attribute.StringSlice("locks", p.names()), attribute.Float64("wait", wait.Seconds())))
	return &acquiring{ctx, m, clock.Now(), span}
}

// traceparent is as in the W3C header of this name, by the program's propagator. Each call has its own, since one
// stream carries many.
func (a *acquiring) traceparent() string {
	carrier := propagation.MapCarrier{}
	otel.GetTextMapPropagator().Inject(a.ctx, carrier)
	return carrier["traceparent"]
}

func (a *acquiring) queued(place Place) {
	a.span.AddEvent("queued", trace.WithAttributes(
		attribute.Int("position", place.Position), attribute.Int("queue_length", place.QueueLength)))
}

// answered notes how it has ended. That a lock is held is an answer, and no error of the span.
func (a *acquiring) answered(got answer) {
	outcome := "granted"
	switch {
	case errors.Is(got.err, ErrHeld):
		outcome = "held"
	case errors.Is(got.err, ErrWaitTimeout):
		outcome = "wait_timeout"
	case a.ctx.Err() != nil && errors.Is(got.err, a.ctx.Err()):
		outcome = "cancelled"
	case got.err != nil:
		outcome = "failed"
	}
	record(a.ctx, a.metrics.waits, a.begun, outcome)
	a.span.SetAttributes(attribute.String("outcome", outcome))
	if got.err != nil {
		a.span.AddEvent("not granted", trace.WithAttributes(attribute.String("error", got.err.Error())))
		return
	}
	a.span.AddEvent("granted", trace.WithAttributes(attribute.String("lease_id", got.grip.leaseID)))
}
