// Taking locks.

package leasehold

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"leasehold.dev/sdk/internal/clock"
)

// Lock takes a lock, waiting in line for 30 s unless WithWait says otherwise.
//
// It fails with [ErrWaitTimeout] if the lock was held for all of that time, by whom an [*Error] says; with
// [ErrUnavailable] up to 5 s after it if no broker could answer; and with the error of ctx when that ends first.
// Then it leaves nothing behind: the place in line is given up, and a lock that was granted at that moment is
// given back.
//
// The lease is kept until it is released or lost, whatever becomes of ctx; see [Lease.Context].
func (c *Client) Lock(ctx context.Context, name string, options ...Option) (*Lease, error) {
	return c.LockAll(ctx, []Target{{Name: name}}, options...)
}

// TryLock takes a lock if it is free. It fails with [ErrHeld] if somebody else has it.
func (c *Client) TryLock(ctx context.Context, name string, options ...Option) (*Lease, error) {
	return c.TryLockAll(ctx, []Target{{Name: name}}, options...)
}

// LockAll takes 2 to 16 different locks, all or none, under one lease, in an order that cannot deadlock. Otherwise it
// is as [Client.Lock]; one target alone is that.
func (c *Client) LockAll(ctx context.Context, targets []Target, options ...Option) (*Lease, error) {
	p, err := newPlan(c.owner, targets, options)
	if err != nil {
		return nil, err
	}
	until := clock.Now() + min(p.wait, Forever-clock.Now())
	for {
		lease, err := c.ask(ctx, p, min(max(0, until-clock.Now()), waitMax))
		if errors.Is(err, ErrWaitTimeout) && clock.Now() < until {
			continue
		}
		return lease, err
	}
}

// TryLockAll is to LockAll what [Client.TryLock] is to Lock.
func (c *Client) TryLockAll(ctx context.Context, targets []Target, options ...Option) (*Lease, error) {
	p, err := newPlan(c.owner, targets, options)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		lease, err := c.ask(ctx, p, 0)
		if !errors.Is(err, ErrHeld) || attempt == p.attempts {
			return lease, err
		}
		if err := pause(ctx, p.every*3/4, p.every/2); err != nil {
			return nil, err
		}
	}
}

// Do takes a lock, runs the work and gives the lock back, also after a panic. The context of the work ends when the
// lock is lost, or with ctx; that the work stops then is up to it.
//
// The error is that of the work and, joined to it, why the lock was lost or not given back as it should be.
func (c *Client) Do(
	ctx context.Context, name string, work func(context.Context, *Lease) error, options ...Option,
) (err error) {
	lease, err := c.Lock(ctx, name, options...)
	if err != nil {
		return err
	}
	defer func() {
		if released := lease.Release(context.WithoutCancel(ctx)); released != nil {
			err = errors.Join(err, released)
		}
	}()
	return work(lease.Context(), lease)
}

// ask is one call with a request id of its own.
func (c *Client) ask(ctx context.Context, p *plan, wait time.Duration) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	acquiring := c.core.metrics.begin(ctx, p, wait)
	defer acquiring.span.End()
	asked := &ask{call: p.call, wait: wait, under: p.under, answer: make(chan answer, 1), places: make(chan Place, 1)}
	asked.call.requestID = uuid.NewString()
	asked.call.traceparent = acquiring.traceparent()
	cancel := c.core.acquire(asked)
	isAnswered := false
	// Also after a panic of the hook.
	defer func() {
		if !isAnswered {
			cancel()
		}
	}()
	for {
		select {
		case got := <-asked.answer:
			isAnswered = true
			acquiring.answered(got)
			if got.err != nil {
				c.core.log().Debug("not granted", "locks", p.String(), "why", got.err)
				return nil, got.err
			}
			return newLease(ctx, got.grip, p.onLost), nil
		case place := <-asked.places:
			acquiring.queued(place)
			if p.onQueue != nil {
				p.onQueue(place)
			}
		case <-ctx.Done():
			acquiring.answered(answer{err: ctx.Err()})
			return nil, ctx.Err()
		}
	}
}

// pause waits for at least so long, and at most so much longer.
func pause(ctx context.Context, least, more time.Duration) error {
	timer := time.NewTimer(least + rand.N(more+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
