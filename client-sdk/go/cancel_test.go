// Calls that are given up at any moment leave nothing behind.

package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"leasehold.dev/sdk"
)

func TestAWaitThatIsGivenUpLeavesTheLineAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		one, other, name := owned(t, url, "one"), owned(t, url, "other"), lockName(t)
		lease := lock(t, one, name)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := other.Lock(ctx, name)
		fails(t, err, context.DeadlineExceeded)
		inLine(t, one, name, 0)
		release(t, lease)
		takes(t, one, name)
	})
}

func TestACallThatIsGivenUpAtAnyMomentLeavesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		one, other, name := owned(t, url, "one"), owned(t, url, "other"), lockName(t)
		granted := 0
		for range 150 {
			held := lock(t, one, name, leasehold.WithTTL(time.Minute))
			ctx, cancel := context.WithCancel(t.Context())
			call := asks(ctx, other, name, leasehold.WithTTL(time.Minute))
			if rand.N(2) == 0 {
				inLine(t, one, name, 1)
			}
			var both sync.WaitGroup
			both.Go(func() {
				if err := held.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(rand.N(2 * time.Millisecond))
			cancel()
			both.Wait()
			lease, err := call.ended(t)
			if err == nil {
				granted++
				is(t, lease.IsValid() && isTaken(t, one, name), "%v", lease)
				release(t, lease)
			} else {
				is(t, errors.Is(err, context.Canceled), "%v", err)
			}
			takes(t, one, name)
		}
		t.Logf("%d of 150 were granted before they were given up", granted)
	})
}

func TestAGrantThatCrossesItsCancelIsGivenBack(t *testing.T) {
	t.Parallel()
	for _, isUnder := range []bool{false, true} {
		t.Run(fmt.Sprintf("under=%t", isUnder), func(t *testing.T) {
			t.Parallel()
			broker := startBroker(t, "")
			proxy := startProxy(t, broker)
			client, other := clientOf(t, proxy.URL()), clientOf(t, broker.URL())
			options := []leasehold.Option{leasehold.WithTTL(20 * time.Second)}
			outer := lock(t, client, "outer", options...)
			if isUnder {
				options = append(options, leasehold.WithUnder(outer))
			}
			held := lock(t, other, "a")
			ctx, cancel := context.WithCancel(t.Context())
			call := asks(ctx, client, "a", options...)
			inLine(t, other, "a", 1)
			proxy.HoldBack(true)
			release(t, held)
			is(t, isTaken(t, other, "a") && call.isOpen(), "the grant is on its way")
			cancel()
			_, err := call.ended(t)
			fails(t, err, context.Canceled)
			proxy.HoldBack(false)
			takes(t, other, "a")
			is(t, outer.IsValid(), "%v", outer)
			release(t, outer)
		})
	}
}

func TestAWaitThatIsGivenUpWithoutABrokerIsNotRepeated(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	proxy := startProxy(t, broker)
	client, other := clientOf(t, proxy.URL()), clientOf(t, broker.URL())
	held := lock(t, other, "a", leasehold.WithTTL(20*time.Second))
	ctx, cancel := context.WithCancel(t.Context())
	call := asks(ctx, client, "a")
	inLine(t, other, "a", 1)
	proxy.Refuse(true)
	proxy.Cut()
	cancel()
	_, err := call.ended(t)
	fails(t, err, context.Canceled)
	proxy.Refuse(false)
	takes(t, client, "b")
	release(t, held)
	// A place whose stream broke is kept for 6 s.
	lease := lock(t, other, "a", leasehold.WithWait(10*time.Second))
	release(t, lease)
}
