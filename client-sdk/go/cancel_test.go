// Calls that are cancelled at any moment leave nothing behind.

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

func TestACancelledWaiterLeavesTheQueueAtOnce(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		one, other, name := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other"), lockName(t)
		lease := lock(t, one, name)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := other.Lock(ctx, name)
		assertErr(t, err, context.DeadlineExceeded)
		waitQueueLength(t, one, name, 0)
		release(t, lease)
		lockAndRelease(t, one, name)
	})
}

func TestACallThatIsCancelledAtAnyMomentLeavesNothing(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		one, other, name := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other"), lockName(t)
		granted := 0
		for range 150 {
			held := lock(t, one, name, leasehold.WithTTL(time.Minute))
			ctx, cancel := context.WithCancel(t.Context())
			call := startLock(ctx, other, name, leasehold.WithTTL(time.Minute))
			if rand.N(2) == 0 {
				waitQueueLength(t, one, name, 1)
			}
			var releases sync.WaitGroup
			releases.Go(func() {
				if err := held.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(rand.N(2 * time.Millisecond))
			cancel()
			releases.Wait()
			lease, err := call.wait(t)
			if err == nil {
				granted++
				assert(t, lease.IsValid() && isHeld(t, one, name), "%v", lease)
				release(t, lease)
			} else {
				assert(t, errors.Is(err, context.Canceled), "%v", err)
			}
			lockAndRelease(t, one, name)
		}
		t.Logf("%d of 150 were granted before they were cancelled", granted)
	})
}

func TestAGrantThatCrossesItsCancelIsReleased(t *testing.T) {
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
			call := startLock(ctx, client, "a", options...)
			waitQueueLength(t, other, "a", 1)
			proxy.BlockResponses(true)
			release(t, held)
			assert(t, isHeld(t, other, "a") && call.isPending(), "the grant was not in flight")
			cancel()
			_, err := call.wait(t)
			assertErr(t, err, context.Canceled)
			proxy.BlockResponses(false)
			lockAndRelease(t, other, "a")
			assert(t, outer.IsValid(), "%v", outer)
			release(t, outer)
		})
	}
}

func TestAWaiterThatIsCancelledWithoutABrokerIsNotRepeated(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	proxy := startProxy(t, broker)
	client, other := clientOf(t, proxy.URL()), clientOf(t, broker.URL())
	held := lock(t, other, "a", leasehold.WithTTL(20*time.Second))
	ctx, cancel := context.WithCancel(t.Context())
	call := startLock(ctx, client, "a")
	waitQueueLength(t, other, "a", 1)
	proxy.RefuseConnections(true)
	proxy.CloseConnections()
	cancel()
	_, err := call.wait(t)
	assertErr(t, err, context.Canceled)
	proxy.RefuseConnections(false)
	lockAndRelease(t, client, "b")
	release(t, held)
	// The broker keeps a queue position for 6 s after its stream broke.
	lease := lock(t, other, "a", leasehold.WithWait(10*time.Second))
	release(t, lease)
}
