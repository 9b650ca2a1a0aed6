// Work under a lock: Do, the context of a lease, and the effect of a loss on the work, with the broker in memory.

package leasehold_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"leasehold.dev/sdk"
	"leasehold.dev/sdk/leaseholdtest"
)

func startTestBroker(t *testing.T) *leaseholdtest.Broker {
	t.Helper()
	broker := leaseholdtest.NewBroker()
	t.Cleanup(broker.Close)
	return broker
}

func TestWorkHoldsAndReleasesTheLock(t *testing.T) {
	t.Parallel()
	broker := startTestBroker(t)
	err := broker.Client("one").Do(t.Context(), "a", func(ctx context.Context, lease *leasehold.Lease) error {
		assert(t, lease.IsValid() && ctx.Err() == nil && broker.HolderCount("a") == 1, "%v", lease)
		held, err := leasehold.AssertHeld(ctx, "a")
		assert(t, held == lease, "another lease was returned")
		return err
	})
	ok(t, err)
	assert(t, broker.HolderCount("a") == 0, "the lock was not released")
}

func TestWorkThatFailsReleasesTheLock(t *testing.T) {
	t.Parallel()
	broker := startTestBroker(t)
	client, workErr := broker.Client("one"), errors.New("on purpose")
	assertErr(t, client.Do(t.Context(), "a", func(context.Context, *leasehold.Lease) error { return workErr }), workErr)
	assert(t, broker.HolderCount("a") == 0, "the lock was not released")
	func() {
		defer func() { assert(t, recover() == "on purpose", "the panic was recovered") }()
		err := client.Do(t.Context(), "a", func(context.Context, *leasehold.Lease) error { panic("on purpose") })
		t.Errorf("the call returned: %v", err)
	}()
	assert(t, broker.HolderCount("a") == 0, "the lock was not released")
	lease := lock(t, client, "a")
	err := client.Do(t.Context(), "a", func(context.Context, *leasehold.Lease) error { return nil }, leasehold.WithWait(0))
	assertErr(t, err, leasehold.ErrHeld)
	release(t, lease)
}

func TestWorkIsNotifiedOfItsLoss(t *testing.T) {
	t.Parallel()
	broker := startTestBroker(t)
	err := broker.Client("one").Do(t.Context(), "a", func(ctx context.Context, lease *leasehold.Lease) error {
		assert(t, broker.Revoke("a", "by hand") == 1, "no lease was ended")
		assert(t, !lease.IsValid() && ctx.Err() == context.Canceled, "%v", lease)
		<-ctx.Done()
		var loss *leasehold.LeaseLostError
		assert(t, errors.As(context.Cause(ctx), &loss), "%v", context.Cause(ctx))
		assert(t, loss.Reason == leasehold.LostRevoked && loss.Message == "by hand", "%v", loss)
		_, held := leasehold.AssertHeld(ctx, "a")
		assertErr(t, held, leasehold.ErrLeaseLost)
		return ctx.Err()
	})
	assertErr(t, err, context.Canceled)
	assertErr(t, err, leasehold.ErrLeaseLost)
}

func TestWorkThatIgnoresItsLossFails(t *testing.T) {
	t.Parallel()
	broker := startTestBroker(t)
	err := broker.Client("one").Do(t.Context(), "a", func(context.Context, *leasehold.Lease) error {
		broker.Lose("a")
		return nil
	})
	assertErr(t, err, leasehold.ErrLeaseLost)
}

func TestAContextEndsWithItsParentWithItsLossAndWithItsRelease(t *testing.T) {
	t.Parallel()
	broker := startTestBroker(t)
	client := broker.Client("one")
	parent, cancel := context.WithCancel(t.Context())
	lease, err := client.Lock(parent, "a")
	ok(t, err)
	child, stop := context.WithCancel(lease.Context())
	defer stop()
	cancel()
	<-child.Done()
	assert(t, lease.IsValid() && broker.HolderCount("a") == 1, "the lease was lost with the context")
	release(t, lease)

	lease = lock(t, client, "a")
	child, stop = context.WithCancel(lease.Context())
	defer stop()
	broker.Lose("a")
	<-child.Done()
	assertErr(t, context.Cause(child), leasehold.ErrLeaseLost)

	lease = lock(t, client, "a")
	assert(t, lease.Context().Err() == nil, "%v", lease)
	release(t, lease)
	var loss *leasehold.LeaseLostError
	assert(t, errors.As(context.Cause(lease.Context()), &loss) && loss.Reason == leasehold.LostReleased, "%v", loss)
}

func TestALossIsNotifiedOnceAndNotForARelease(t *testing.T) {
	t.Parallel()
	broker := startTestBroker(t)
	client := broker.Client("one")
	notified, unblock := make(chan *leasehold.Lease, 10), make(chan struct{})
	onLost := leasehold.WithOnLost(func(l *leasehold.Lease) {
		notified <- l
		<-unblock
	})
	lost, released := lock(t, client, "a", onLost), lock(t, client, "b", onLost)
	release(t, released)
	assert(t, broker.Lose("a") == 1 && broker.Lose("b") == 0, "the number of ended leases is wrong")
	assert(t, <-notified == lost, "another lease was returned")
	// A slow hook does not block the client.
	lockAndRelease(t, client, "c")
	close(unblock)
	held := lock(t, broker.Client("other"), "a")
	assertErr(t, lost.Release(t.Context()), leasehold.ErrLeaseLost)
	release(t, lost)
	assert(t, held.IsValid() && broker.HolderCount("a") == 1, "the lost lease released the lock of the next holder")
	assert(t, len(notified) == 0, "the loss was notified twice")
}

func TestAssertHeldFailsWithoutTheLock(t *testing.T) {
	t.Parallel()
	broker := startTestBroker(t)
	client := broker.Client("one")
	_, err := leasehold.AssertHeld(t.Context(), "a")
	assertErr(t, err, leasehold.ErrNotHeld)
	lease, err := client.LockAll(t.Context(), []leasehold.Target{{Name: "a"}, {Name: "b", Namespace: "elsewhere"}})
	ok(t, err)
	inner, err := client.Lock(lease.Context(), "c")
	ok(t, err)
	ctx := inner.Context()
	for _, lookup := range []func() (*leasehold.Lease, error){
		func() (*leasehold.Lease, error) { return leasehold.AssertHeld(ctx, "a") },
		func() (*leasehold.Lease, error) {
			return leasehold.AssertHeld(ctx, "b", leasehold.WithNamespace("elsewhere"))
		},
	} {
		held, err := lookup()
		assert(t, err == nil && held == lease, "%v", err)
	}
	_, err = leasehold.AssertHeld(ctx, "b")
	assertErr(t, err, leasehold.ErrNotHeld)
	release(t, inner, lease)
	_, err = leasehold.AssertHeld(ctx, "a")
	assertErr(t, err, leasehold.ErrLeaseLost)
}

func TestManyGoroutinesWantOneLock(t *testing.T) {
	t.Parallel()
	broker := startTestBroker(t)
	client := broker.Client("one")
	holders, largest := 0, 0
	var calls sync.WaitGroup
	for range 30 {
		calls.Go(func() {
			err := client.Do(t.Context(), "a", func(context.Context, *leasehold.Lease) error {
				// The race detector reports an access without mutual exclusion.
				holders++
				largest = max(largest, holders)
				holders--
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	assert(t, largest == 1 && broker.HolderCount("a") == 0, "%d callers held the lock", largest)
}

func TestARefusalOfTheTestBrokerIsReturnedOnce(t *testing.T) {
	t.Parallel()
	broker := startTestBroker(t)
	client := broker.Client("one")
	broker.Refuse("a", &leasehold.Error{Err: leasehold.ErrStoreRecovering, Message: "wait", RetryAfter: 3 * time.Second})
	broker.Refuse("b", leasehold.ErrQueueFull)
	_, err := client.Lock(t.Context(), "a")
	assertErr(t, err, leasehold.ErrStoreRecovering)
	var detailed *leasehold.Error
	assert(t, errors.As(err, &detailed) && detailed.RetryAfter == 3*time.Second && detailed.Message == "wait", "%v", err)
	_, err = client.Lock(t.Context(), "b")
	assertErr(t, err, leasehold.ErrQueueFull)
	lockAndRelease(t, client, "a")
}

func TestALossGrantsTheNextWaiter(t *testing.T) {
	t.Parallel()
	broker := startTestBroker(t)
	client := broker.Client("one")
	lease := lock(t, client, "a")
	waiter := startLock(t.Context(), client, "a")
	waitQueueLength(t, client, "a", 1)
	assert(t, broker.QueueLength("a") == 1, "%d", broker.QueueLength("a"))
	assert(t, broker.Lose("a") == 1, "no lease was ended")
	next := waiter.waitGranted(t)
	assert(t, !lease.IsValid() && next.IsValid(), "%v %v", lease, next)
	release(t, next)
}
