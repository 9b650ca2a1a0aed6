// What the calls do, with a broker and with the one in memory alike.

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

func TestOneHoldsAndTheNextHasALargerToken(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		one, other, name := owned(t, url, "one"), owned(t, url, "other"), lockName(t)
		lease := lock(t, one, name, leasehold.WithTTL(shortTTL))
		is(t, lease.IsValid() && lease.LostReason() == 0 && lease.Check() == nil, "not valid: %v", lease)
		is(t, lease.FencingToken() > 0 && lease.ID() != "" && lease.Remaining() > 0, "%v", lease)
		is(t, len(lease.Locks()) == 1 && lease.Locks()[0] == "default/"+name, "%v", lease.Locks())
		token, found := lease.FencingTokenOf(leasehold.Target{Name: name})
		is(t, found && token == lease.FencingToken(), "%d", token)
		_, found = lease.FencingTokenOf(leasehold.Target{Name: "another"})
		is(t, !found, "a token of another lock")
		is(t, isTaken(t, other, name), "two have it")
		release(t, lease)
		is(t, !lease.IsValid() && lease.LostReason() == leasehold.LostReleased && lease.Remaining() == 0, "%v", lease)
		fails(t, lease.Check(), leasehold.ErrLeaseLost)
		next, err := other.TryLock(t.Context(), name)
		ok(t, err)
		is(t, next.FencingToken() > lease.FencingToken(), "tokens rise")
		release(t, lease)
		is(t, next.IsValid(), "a second release does nothing")
		release(t, next)
	})
}

func TestAWaitEndsWithWhoWasInTheWay(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		one, other, name := owned(t, url, "one"), owned(t, url, "other"), lockName(t)
		lease := lock(t, one, name, leasehold.WithReason("to be there"))
		begun := time.Now()
		_, err := other.Lock(t.Context(), name, leasehold.WithWait(300*time.Millisecond))
		fails(t, err, leasehold.ErrWaitTimeout)
		is(t, time.Since(begun) >= 300*time.Millisecond, "too soon")
		var said *leasehold.Error
		is(t, errors.As(err, &said) && len(said.Holders) == 1 && said.RetryAfter > 0, "%+v", err)
		holder := said.Holders[0]
		is(t, holder.Owner == "one" && holder.Reason == "to be there" && holder.LeaseID == lease.ID(), "%+v", holder)
		is(t, strings.Contains(err.Error(), "one (to be there)"), "%v", err)
		_, err = other.Lock(t.Context(), name, leasehold.WithWait(0))
		fails(t, err, leasehold.ErrHeld)
		release(t, lease)
	})
}

func TestAWaiterLearnsItsPlaceAndIsGrantedInItsTurn(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		one, other, name := owned(t, url, "one"), owned(t, url, "other"), lockName(t)
		lease := lock(t, one, name)
		first := asks(t.Context(), one, name)
		inLine(t, one, name, 1)
		places := make(chan leasehold.Place, 100)
		second := asks(t.Context(), other, name, leasehold.WithOnQueue(func(p leasehold.Place) { places <- p }))
		inLine(t, one, name, 2)
		place := <-places
		is(t, place.Position == 2 && place.QueueLength == 2 && place.Holders[0].LeaseID == lease.ID(), "%+v", place)
		release(t, lease)
		leads := first.granted(t)
		is(t, second.isOpen(), "out of turn")
		is(t, (<-places).Position == 1, "it moves up")
		release(t, leads)
		last := second.granted(t)
		is(t, last.FencingToken() > leads.FencingToken() && leads.FencingToken() > lease.FencingToken(), "tokens rise")
		release(t, last)
	})
}

func TestAHookThatPanicsEndsTheWait(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		one, other, name := owned(t, url, "one"), owned(t, url, "other"), lockName(t)
		lease := lock(t, one, name)
		func() {
			defer func() { is(t, recover() == "on purpose", "it was swallowed") }()
			hook := leasehold.WithOnQueue(func(leasehold.Place) { panic("on purpose") })
			_, err := other.Lock(t.Context(), name, hook)
			t.Errorf("it came back: %v", err)
		}()
		inLine(t, one, name, 0)
		release(t, lease)
	})
}

func TestACloseGivesEverythingBack(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		one, other, name := owned(t, url, "one"), owned(t, url, "other"), lockName(t)
		told := make(chan leasehold.LostReason, 1)
		lease := lock(t, one, name, leasehold.WithTTL(20*time.Second),
			leasehold.WithOnLost(func(l *leasehold.Lease) { told <- l.LostReason() }))
		waiting := asks(t.Context(), one, name)
		inLine(t, other, name, 1)
		begun := time.Now()
		ok(t, one.Close())
		is(t, time.Since(begun) < 2500*time.Millisecond, "it took %s", time.Since(begun))
		_, err := waiting.ended(t)
		fails(t, err, leasehold.ErrClosed)
		is(t, lease.LostReason() == leasehold.LostClosed && <-told == leasehold.LostClosed, "%v", lease)
		_, err = one.Lock(t.Context(), name)
		fails(t, err, leasehold.ErrClosed)
		_, err = one.Get(t.Context(), name)
		fails(t, err, leasehold.ErrClosed)
		fails(t, one.Connect(t.Context()), leasehold.ErrClosed)
		fails(t, lease.Release(t.Context()), leasehold.ErrLeaseLost)
		takes(t, other, name)
		ok(t, one.Close())
	})
}

func TestAClientThatWasNotUsedIsClosed(t *testing.T) {
	ok(t, clientOf(t, "http://127.0.0.1:1").Close())
}

func TestAttemptsAreCounted(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		one, other, name := owned(t, url, "one"), owned(t, url, "other"), lockName(t)
		lease := lock(t, one, name)
		begun := time.Now()
		_, err := other.TryLock(t.Context(), name, leasehold.WithAttempts(4, 100*time.Millisecond))
		fails(t, err, leasehold.ErrHeld)
		is(t, time.Since(begun) >= 225*time.Millisecond, "too soon")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = other.TryLock(ctx, name, leasehold.WithAttempts(2, time.Hour))
		fails(t, err, context.DeadlineExceeded)
		late := make(chan error, 1)
		go func() {
			_, err := other.TryLock(t.Context(), name, leasehold.WithAttempts(1_000, 10*time.Millisecond))
			late <- err
		}()
		release(t, lease)
		ok(t, <-late)
	})
}

func TestALookTellsWhoHoldsAndHowManyWait(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		client, name := owned(t, url, "one"), lockName(t)
		state, err := client.Get(t.Context(), name)
		ok(t, err)
		is(t, len(state.Holders) == 0 && state.QueueLength == 0, "%+v", state)
		lease := lock(t, client, name, leasehold.WithReason("looked at"), leasehold.WithLabel("team", "a"))
		waiting := asks(t.Context(), client, name)
		inLine(t, client, name, 1)
		state, err = client.Get(t.Context(), name)
		ok(t, err)
		holder := state.Holders[0]
		is(t, holder.Owner == "one" && holder.Reason == "looked at", "%+v", holder)
		is(t, holder.FencingToken == lease.FencingToken() && state.LastFencingToken == lease.FencingToken(), "%+v", state)
		is(t, !holder.Since.IsZero() && holder.Remaining > 0, "%+v", holder)
		release(t, lease)
		release(t, waiting.granted(t))
	})
}

func TestALeaderIsElectedAndObserved(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		one, other, name := owned(t, url, "one"), owned(t, url, "other"), lockName(t)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		leaders := make(chan *leasehold.Holder, 10)
		go func() {
			defer close(leaders)
			for leader, err := range owned(t, url, "third").Elect(name).Observe(ctx) {
				if err != nil {
					t.Error(err)
				}
				leaders <- leader
			}
		}()
		is(t, <-leaders == nil, "nobody leads")
		leads, err := one.Elect(name, leasehold.WithReason("first")).Campaign(t.Context())
		ok(t, err)
		seen := <-leaders
		is(t, seen.Owner == "one" && seen.Reason == "first" && seen.FencingToken == leads.FencingToken(), "%+v", seen)
		following := make(chan error, 1)
		go func() {
			_, err := other.Elect(name).Campaign(t.Context())
			following <- err
		}()
		inLine(t, one, name, 1)
		ok(t, one.Close())
		ok(t, <-following)
		is(t, (<-leaders).Owner == "other", "another leads")
		stop()
		_, goesOn := <-leaders
		is(t, !goesOn, "it ends with its context")
	})
}

func TestWhatIsNotLegalIsToldAndTheStreamLivesOn(t *testing.T) {
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
		fails(t, err, leasehold.ErrInvalid)
	}
	for _, name := range []string{"", "a\nb", "\xff"} {
		_, err := client.Lock(t.Context(), name)
		fails(t, err, leasehold.ErrInvalid)
	}
	for _, targets := range [][]leasehold.Target{nil, {{Name: "a"}, {Name: "a"}}} {
		_, err := client.LockAll(t.Context(), targets)
		fails(t, err, leasehold.ErrInvalid)
	}
	is(t, lease.IsValid(), "%v", lease)
	release(t, lease)
}

func TestAContextThatHasEndedAsksForNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := client.Lock(ctx, name)
		fails(t, err, context.Canceled)
		_, err = client.Get(ctx, name)
		fails(t, err, context.Canceled)
		fails(t, clientOf(t, url).Connect(ctx), context.Canceled)
		takes(t, client, name)
	})
}

func TestADeferredReleaseReleasesThoughItsContextHasEnded(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		proxy := startProxyTo(t, strings.TrimPrefix(url, "http://"))
		one, other, name := owned(t, proxy.URL(), "one"), owned(t, url, "other"), lockName(t)
		ctx, cancel := context.WithCancel(t.Context())
		lease, err := one.Lock(ctx, name, leasehold.WithTTL(20*time.Second))
		ok(t, err)
		// A confirmation that is there already would be returned instead.
		proxy.Swallow(testbed.ToClient)
		cancel()
		is(t, lease.IsValid(), "the end of a context is no loss")
		fails(t, lease.Release(ctx), context.Canceled)
		is(t, !lease.IsValid(), "%v", lease)
		takes(t, other, name)
	})
}
