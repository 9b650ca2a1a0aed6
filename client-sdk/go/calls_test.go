// Calls of the client, each with a real broker and with the broker in memory.

package leasehold_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"leasehold.dev/sdk"
	"leasehold.dev/sdk/internal/testbed"
)

func TestTheNextHolderHasALargerToken(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		one, other, name := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other"), lockName(t)
		lease := lock(t, one, name, leasehold.WithTTL(shortTTL))
		assert(t, lease.IsValid() && lease.LostReason() == 0 && lease.Check() == nil, "the lease is not valid: %v", lease)
		assert(t, lease.FencingToken() > 0 && lease.ID() != "" && lease.Remaining() > 0, "%v", lease)
		assert(t, len(lease.Locks()) == 1 && lease.Locks()[0] == "default/"+name, "%v", lease.Locks())
		token, found := lease.FencingTokenOf(leasehold.Target{Name: name})
		assert(t, found && token == lease.FencingToken(), "%d", token)
		_, found = lease.FencingTokenOf(leasehold.Target{Name: "another"})
		assert(t, !found, "FencingTokenOf found a lock that is not held")
		assert(t, isHeld(t, other, name), "two callers hold the lock")
		release(t, lease)
		assert(t, !lease.IsValid() && lease.LostReason() == leasehold.LostReleased && lease.Remaining() == 0, "%v", lease)
		assertErr(t, lease.Check(), leasehold.ErrLeaseLost)
		next, err := other.TryLock(t.Context(), name)
		ok(t, err)
		assert(t, next.FencingToken() > lease.FencingToken(), "the token did not rise")
		release(t, lease)
		assert(t, next.IsValid(), "the second release ended the next lease")
		release(t, next)
	})
}

func TestAWaitTimeoutReturnsTheHolders(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		one, other, name := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other"), lockName(t)
		lease := lock(t, one, name, leasehold.WithReason("maintenance"))
		start := time.Now()
		_, err := other.Lock(t.Context(), name, leasehold.WithWait(300*time.Millisecond))
		assertErr(t, err, leasehold.ErrWaitTimeout)
		assert(t, time.Since(start) >= 300*time.Millisecond, "returned before the time limit")
		var detailed *leasehold.Error
		assert(t, errors.As(err, &detailed) && len(detailed.Holders) == 1 && detailed.RetryAfter > 0, "%+v", err)
		holder := detailed.Holders[0]
		assert(t, holder.Owner == "one" && holder.Reason == "maintenance" && holder.LeaseID == lease.ID(), "%+v", holder)
		assert(t, strings.Contains(err.Error(), "one (maintenance)"), "%v", err)
		_, err = other.Lock(t.Context(), name, leasehold.WithWait(0))
		assertErr(t, err, leasehold.ErrHeld)
		release(t, lease)
	})
}

func TestAWaiterReceivesItsPositionAndIsGrantedInOrder(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		one, other, name := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other"), lockName(t)
		lease := lock(t, one, name)
		first := startLock(t.Context(), one, name)
		waitQueueLength(t, one, name, 1)
		positions := make(chan leasehold.QueuePosition, 100)
		onQueue := leasehold.WithOnQueue(func(position leasehold.QueuePosition) { positions <- position })
		second := startLock(t.Context(), other, name, onQueue)
		waitQueueLength(t, one, name, 2)
		position := <-positions
		assert(t, position.Position == 2 && position.QueueLength == 2, "%+v", position)
		assert(t, position.Holders[0].LeaseID == lease.ID(), "%+v", position)
		release(t, lease)
		leader := first.waitGranted(t)
		assert(t, second.isPending(), "the second waiter was granted first")
		assert(t, (<-positions).Position == 1, "the position did not change")
		release(t, leader)
		last := second.waitGranted(t)
		assert(t, leader.FencingToken() > lease.FencingToken(), "the token did not rise")
		assert(t, last.FencingToken() > leader.FencingToken(), "the token did not rise")
		release(t, last)
	})
}

func TestAHookThatPanicsEndsTheWait(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		one, other, name := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other"), lockName(t)
		lease := lock(t, one, name)
		func() {
			defer func() { assert(t, recover() == "on purpose", "the panic was recovered") }()
			hook := leasehold.WithOnQueue(func(leasehold.QueuePosition) { panic("on purpose") })
			_, err := other.Lock(t.Context(), name, hook)
			t.Errorf("the call returned: %v", err)
		}()
		waitQueueLength(t, one, name, 0)
		release(t, lease)
	})
}

func TestACloseReleasesEverything(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		one, other, name := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other"), lockName(t)
		notified := make(chan leasehold.LostReason, 1)
		lease := lock(t, one, name, leasehold.WithTTL(20*time.Second),
			leasehold.WithOnLost(func(l *leasehold.Lease) { notified <- l.LostReason() }))
		waiter := startLock(t.Context(), one, name)
		waitQueueLength(t, other, name, 1)
		start := time.Now()
		ok(t, one.Close())
		assert(t, time.Since(start) < 2500*time.Millisecond, "Close took %s", time.Since(start))
		_, err := waiter.wait(t)
		assertErr(t, err, leasehold.ErrClosed)
		assert(t, lease.LostReason() == leasehold.LostClosed && <-notified == leasehold.LostClosed, "%v", lease)
		_, err = one.Lock(t.Context(), name)
		assertErr(t, err, leasehold.ErrClosed)
		_, err = one.Get(t.Context(), name)
		assertErr(t, err, leasehold.ErrClosed)
		_, err = one.SetLimit(t.Context(), name, 2)
		assertErr(t, err, leasehold.ErrClosed)
		assertErr(t, one.Connect(t.Context()), leasehold.ErrClosed)
		assertErr(t, lease.Release(t.Context()), leasehold.ErrLeaseLost)
		lockAndRelease(t, other, name)
		ok(t, one.Close())
	})
}

func TestAnUnusedClientIsClosed(t *testing.T) {
	ok(t, clientOf(t, "http://127.0.0.1:1").Close())
}

func TestAttemptsAreCounted(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		one, other, name := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other"), lockName(t)
		lease := lock(t, one, name)
		start := time.Now()
		_, err := other.TryLock(t.Context(), name, leasehold.WithAttempts(4, 100*time.Millisecond))
		assertErr(t, err, leasehold.ErrHeld)
		assert(t, time.Since(start) >= 225*time.Millisecond, "returned before the time limit")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = other.TryLock(ctx, name, leasehold.WithAttempts(2, time.Hour))
		assertErr(t, err, context.DeadlineExceeded)
		result := make(chan error, 1)
		go func() {
			_, err := other.TryLock(t.Context(), name, leasehold.WithAttempts(1_000, 10*time.Millisecond))
			result <- err
		}()
		release(t, lease)
		ok(t, <-result)
	})
}

func TestGetReturnsHoldersAndQueueLength(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		client, name := clientWithOwner(t, url, "one"), lockName(t)
		state, err := client.Get(t.Context(), name)
		ok(t, err)
		assert(t, len(state.Holders) == 0 && state.QueueLength == 0, "%+v", state)
		lease := lock(t, client, name, leasehold.WithReason("inspected"), leasehold.WithLabel("team", "a"))
		waiter := startLock(t.Context(), client, name)
		waitQueueLength(t, client, name, 1)
		state, err = client.Get(t.Context(), name)
		ok(t, err)
		holder := state.Holders[0]
		assert(t, holder.Owner == "one" && holder.Reason == "inspected", "%+v", holder)
		assert(t, holder.FencingToken == lease.FencingToken() && state.LastFencingToken == lease.FencingToken(), "%+v", state)
		assert(t, !holder.Since.IsZero() && holder.Remaining > 0, "%+v", holder)
		release(t, lease)
		release(t, waiter.waitGranted(t))
	})
}

func TestAClosureIsInTheStateAndInQueuePositions(t *testing.T) {
	t.Parallel()
	url, name := sharedBroker(t).URL(), lockName(t)
	one, other := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other")
	lease := lock(t, one, name, leasehold.WithTTL(shortTTL), leasehold.WithAtLeast(operationTimeout),
		leasehold.WithReason("nightly"))
	positions := make(chan leasehold.QueuePosition, 100)
	onQueue := leasehold.WithOnQueue(func(position leasehold.QueuePosition) { positions <- position })
	waiter := startLock(t.Context(), other, name, onQueue)
	position := <-positions
	assert(t, position.Closure == nil, "%+v", position.Closure)
	state, err := other.Get(t.Context(), name)
	ok(t, err)
	assert(t, state.Closure == nil, "%+v", state.Closure)
	release(t, lease)
	state, err = other.Get(t.Context(), name)
	ok(t, err)
	for position.Closure == nil {
		select {
		case position = <-positions:
		case <-waiter.done:
			t.Fatalf("the call ended without a position that has the closure: %v", waiter.err)
		}
	}
	for _, closure := range []*leasehold.Closure{position.Closure, state.Closure} {
		assert(t, closure != nil && closure.Cause == leasehold.ClosureAtLeast, "%+v", closure)
		assert(t, closure.Owner == "one" && closure.Reason == "nightly" && closure.Remaining > 0, "%+v", closure)
	}
}

func TestALeaderIsElectedAndObserved(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		one, other, name := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other"), lockName(t)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		leaders := make(chan *leasehold.Holder, 10)
		go func() {
			defer close(leaders)
			for holder, err := range clientWithOwner(t, url, "third").Elect(name).Observe(ctx) {
				if err != nil {
					t.Error(err)
				}
				leaders <- holder
			}
		}()
		assert(t, <-leaders == nil, "there is a leader")
		leader, err := one.Elect(name, leasehold.WithReason("first")).Campaign(t.Context())
		ok(t, err)
		observed := <-leaders
		assert(t, observed.Owner == "one" && observed.Reason == "first", "%+v", observed)
		assert(t, observed.FencingToken == leader.FencingToken(), "%+v", observed)
		campaign := make(chan error, 1)
		go func() {
			_, err := other.Elect(name).Campaign(t.Context())
			campaign <- err
		}()
		waitQueueLength(t, one, name, 1)
		ok(t, one.Close())
		ok(t, <-campaign)
		assert(t, (<-leaders).Owner == "other", "the leader did not change")
		stop()
		_, isOpen := <-leaders
		assert(t, !isOpen, "the sequence did not end with its context")
	})
}

func TestInvalidParametersAreRejectedAndTheStreamStaysOpen(t *testing.T) {
	t.Parallel()
	client, name := clientOf(t, sharedBroker(t).URL()), lockName(t)
	lease := lock(t, client, name+"-kept")
	for _, options := range [][]leasehold.Option{
		{leasehold.WithTTL(-1)},
		{leasehold.WithShared(), leasehold.WithPermits(1, 2)},
		{leasehold.WithPermits(0, 2)},
		{leasehold.WithPermits(2, 1)},
		{leasehold.WithPermits(1<<40, 1<<40)},
		{leasehold.WithReason("\xff")},
		{leasehold.WithReason(strings.Repeat("x", 600))},
		{leasehold.WithNamespace("No")},
		{leasehold.WithLabel("\xff", "x")},
	} {
		_, err := client.Lock(t.Context(), name, options...)
		assertErr(t, err, leasehold.ErrInvalid)
	}
	for _, name := range []string{"", "a\nb", "\xff"} {
		_, err := client.Lock(t.Context(), name)
		assertErr(t, err, leasehold.ErrInvalid)
	}
	for _, limit := range []int{-1, 0, 1_001, 1 << 40} {
		_, err := client.SetLimit(t.Context(), name, limit)
		assertErr(t, err, leasehold.ErrInvalid)
	}
	for _, name := range []string{"", "\xff"} {
		_, err := client.SetLimit(t.Context(), name, 2)
		assertErr(t, err, leasehold.ErrInvalid)
	}
	for _, targets := range [][]leasehold.Target{nil, {{Name: "a"}, {Name: "a"}}} {
		_, err := client.LockAll(t.Context(), targets)
		assertErr(t, err, leasehold.ErrInvalid)
	}
	assert(t, lease.IsValid(), "%v", lease)
	release(t, lease)
}

func TestAContextThatHasEndedSendsNoRequest(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := client.Lock(ctx, name)
		assertErr(t, err, context.Canceled)
		_, err = client.Get(ctx, name)
		assertErr(t, err, context.Canceled)
		_, err = client.SetLimit(ctx, name, 2)
		assertErr(t, err, context.Canceled)
		assertErr(t, clientOf(t, url).Connect(ctx), context.Canceled)
		lockAndRelease(t, client, name)
	})
}

func TestADeferredReleaseReleasesAfterItsContextHasEnded(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		proxy := startProxyTo(t, strings.TrimPrefix(url, "http://"))
		one, other, name := clientWithOwner(t, proxy.URL(), "one"), clientWithOwner(t, url, "other"), lockName(t)
		ctx, cancel := context.WithCancel(t.Context())
		lease, err := one.Lock(ctx, name, leasehold.WithTTL(20*time.Second))
		ok(t, err)
		// A confirmation that has already arrived would be returned instead.
		proxy.Drop(testbed.ToClient)
		cancel()
		assert(t, lease.IsValid(), "the lease was lost with the context")
		assertErr(t, lease.Release(ctx), context.Canceled)
		assert(t, !lease.IsValid(), "%v", lease)
		lockAndRelease(t, other, name)
	})
}
