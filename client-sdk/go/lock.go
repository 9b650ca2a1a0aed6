// Acquiring locks.

package leasehold

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"leasehold.dev/sdk/internal/clock"
)

// Lock acquires a lock. It waits in the queue for up to 30 s, or for the time of [WithWait].
//
// It fails with [ErrWaitTimeout] if the lock was held for all of that time; the [*Error] then contains the holders. It
// fails with [ErrUnavailable] if no broker could respond until 5 s after that time, and with the error of ctx if ctx
// ends first. A call whose ctx ends leaves nothing behind: its queue position is removed, and a lock that was granted
// at that moment is released.
//
// The lease is renewed until it is released or lost, even after ctx has ended; see [Lease.Context].
func (c *Client) Lock(ctx context.Context, name string, options ...Option) (*Lease, error) {
	return c.LockAll(ctx, []Target{{Name: name}}, options...)
}

// TryLock acquires a lock without waiting. It fails with [ErrHeld] if another caller holds the lock, or the lock is
// closed.
func (c *Client) TryLock(ctx context.Context, name string, options ...Option) (*Lease, error) {
	return c.TryLockAll(ctx, []Target{{Name: name}}, options...)
}

// LockAll acquires 2 to 16 different locks under one lease, all or none, in an order that cannot deadlock. Otherwise it
// behaves as [Client.Lock]; with one target it is equivalent to that call.
func (c *Client) LockAll(ctx context.Context, targets []Target, options ...Option) (*Lease, error) {
	opts, err := newAcquireOptions(c.owner, targets, options)
	if err != nil {
		return nil, err
	}
	deadline := clock.Now() + min(opts.wait, Forever-clock.Now())
	for {
		lease, err := c.acquire(ctx, opts, min(max(0, deadline-clock.Now()), waitMax))
		if errors.Is(err, ErrWaitTimeout) && clock.Now() < deadline {
			continue
		}
		return lease, err
	}
}

// TryLockAll acquires several locks as [Client.LockAll] does, but without waiting. It fails with [ErrHeld] if another
// caller holds one of the locks, or one is closed.
func (c *Client) TryLockAll(ctx context.Context, targets []Target, options ...Option) (*Lease, error) {
	opts, err := newAcquireOptions(c.owner, targets, options)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		lease, err := c.acquire(ctx, opts, 0)
		if !errors.Is(err, ErrHeld) || attempt == opts.attempts {
			return lease, err
		}
		if err := sleepRandomly(ctx, opts.interval*3/4, opts.interval/2); err != nil {
			return nil, err
		}
	}
}

// Do acquires a lock, runs the work and releases the lock, also after a panic. The context of the work ends when the
// lock is lost or when ctx ends. The work is responsible for stopping then.
//
// The returned error is that of the work, joined with the error of the release if the lock was lost or the release
// failed.
func (c *Client) Do(
	ctx context.Context, name string, work func(context.Context, *Lease) error, options ...Option,
) (err error) {
	lease, err := c.Lock(ctx, name, options...)
	if err != nil {
		return err
	}
	defer func() {
		if releaseErr := lease.Release(context.WithoutCancel(ctx)); releaseErr != nil {
			err = errors.Join(err, releaseErr)
		}
	}()
	return work(lease.Context(), lease)
}

// acquire sends one acquire with a new request id and waits for its result.
func (c *Client) acquire(ctx context.Context, opts *acquireOptions, wait time.Duration) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	span := c.runtime.metrics.startAcquireSpan(ctx, opts, wait)
	defer span.otelSpan.End()
	command := &acquireCommand{
		params: opts.params, wait: wait, under: opts.under,
		result: make(chan acquireResult, 1), positions: make(chan QueuePosition, 1),
	}
	command.params.requestID = uuid.NewString()
	command.params.traceparent = span.traceparent()
	cancel := c.runtime.acquire(command)
	isComplete := false
	// The acquire is cancelled also after a panic of the hook.
	defer func() {
		if !isComplete {
			cancel()
		}
	}()
	for {
		select {
		case result := <-command.result:
			isComplete = true
			span.recordResult(result)
			if result.err != nil {
				c.runtime.log().Debug("not granted", "locks", opts.String(), "why", result.err)
				return nil, result.err
			}
			return newLease(ctx, result.handle, opts.onLost), nil
		case position := <-command.positions:
			span.recordPosition(position)
			if opts.onQueue != nil {
				opts.onQueue(position)
			}
		case <-ctx.Done():
			span.recordResult(acquireResult{err: ctx.Err()})
			return nil, ctx.Err()
		}
	}
}

// sleepRandomly waits for a random time from minimum to minimum + spread. It fails with the error of ctx.
func sleepRandomly(ctx context.Context, minimum, spread time.Duration) error {
	timer := time.NewTimer(minimum + rand.N(spread+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
