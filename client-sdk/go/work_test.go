// Work under a lock: Do, the context of a lease, and what a loss does to the code inside. With the broker in memory.

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

func startFake(t *testing.T) *leaseholdtest.Broker {
	t.Helper()
	broker := leaseholdtest.NewBroker()
	t.Cleanup(broker.Close)
	return broker
}

func TestWorkHoldsAndGivesBack(t *testing.T) {
	t.Parallel()
	broker := startFake(t)
	err := broker.Client("one").Do(t.Context(), "a", func(ctx context.Context, lease *leasehold.Lease) error {
		is(t, lease.IsValid() && ctx.Err() == nil && broker.HolderCount("a") == 1, "%v", lease)
		held, err := leasehold.AssertHeld(ctx, "a")
		is(t, held == lease, "another lease")
		return err
	})
	ok(t, err)
	is(t, broker.HolderCount("a") == 0, "not given back")
}

func TestWorkThatFailsGivesBack(t *testing.T) {
	t.Parallel()
	broker := startFake(t)
	client, why := broker.Client("one"), errors.New("on purpose")
	fails(t, client.Do(t.Context(), "a", func(context.Context, *leasehold.Lease) error { return why }), why)
	is(t, broker.HolderCount("a") == 0, "not given back")
	func() {
		defer func() { is(t, recover() == "on purpose", "it was swallowed") }()
		err := client.Do(t.Context(), "a", func(context.Context, *leasehold.Lease) error { panic("on purpose") })
		t.Errorf("it came back: %v", err)
	}()
	is(t, broker.HolderCount("a") == 0, "not given back")
	lease := lock(t, client, "a")
	err := client.Do(t.Context(), "a", func(context.Context, *leasehold.Lease) error { return nil }, leasehold.WithWait(0))
	fails(t, err, leasehold.ErrHeld)
	release(t, lease)
}

func TestWorkIsToldOfItsLoss(t *testing.T) {
	t.Parallel()
	broker := startFake(t)
	err := broker.Client("one").Do(t.Context(), "a", func(ctx context.Context, lease *leasehold.Lease) error {
		is(t, broker.Revoke("a", "by hand") == 1, "nobody had it")
		is(t, !lease.IsValid() && ctx.Err() == context.Canceled, "%v", lease)
		<-ctx.Done()
		var why *leasehold.LeaseLostError
		is(t, errors.As(context.Cause(ctx), &why), "%v", context.Cause(ctx))
		is(t, why.Reason == leasehold.LostRevoked && why.Message == "by hand", "%v", why)
		_, held := leasehold.AssertHeld(ctx, "a")
		fails(t, held, leasehold.ErrLeaseLost)
		return ctx.Err()
	})
	fails(t, err, context.Canceled)
	fails(t, err, leasehold.ErrLeaseLost)
}

func TestWorkThatDidNotHearOfItsLossIsNotDone(t *testing.T) {
	t.Parallel()
	broker := startFake(t)
	err := broker.Client("one").Do(t.Context(), "a", func(context.Context, *leasehold.Lease) error {
		broker.Lose("a")
		return nil
	})
	fails(t, err, leasehold.ErrLeaseLost)
}

func TestAContextEndsWithItsParentWithItsLossAndWithItsRelease(t *testing.T) {
	t.Parallel()
	broker := startFake(t)
	client := broker.Client("one")
	parent, cancel := context.WithCancel(t.Context())
	lease, err := client.Lock(parent, "a")
	ok(t, err)
	child, stop := context.WithCancel(lease.Context())
	defer stop()
	cancel()
	<-child.Done()
	is(t, lease.IsValid() && broker.HolderCount("a") == 1, "the end of a context is no loss")
	release(t, lease)

	lease = lock(t, client, "a")
	child, stop = context.WithCancel(lease.Context())
	defer stop()
	broker.Lose("a")
	<-child.Done()
	fails(t, context.Cause(child), leasehold.ErrLeaseLost)

	lease = lock(t, client, "a")
	is(t, lease.Context().Err() == nil, "%v", lease)
	release(t, lease)
	var why *leasehold.LeaseLostError
	is(t, errors.As(context.Cause(lease.Context()), &why) && why.Reason == leasehold.LostReleased, "%v", why)
}

func TestALossIsToldOnceAndNotForARelease(t *testing.T) {
	t.Parallel()
	broker := startFake(t)
	client := broker.Client("one")
	told, goOn := make(chan *leasehold.Lease, 10), make(chan struct{})
	onLost := leasehold.WithOnLost(func(l *leasehold.Lease) {
		told <- l
		<-goOn
	})
	lost, quiet := lock(t, client, "a", onLost), lock(t, client, "b", onLost)
	release(t, quiet)
	is(t, broker.Lose("a") == 1 && broker.Lose("b") == 0, "who had them")
	is(t, <-told == lost, "another lease")
	// A hook may take its time.
	takes(t, client, "c")
	close(goOn)
	held := lock(t, broker.Client("other"), "a")
	fails(t, lost.Release(t.Context()), leasehold.ErrLeaseLost)
	release(t, lost)
	is(t, held.IsValid() && broker.HolderCount("a") == 1, "a lost lease gives nothing back")
	is(t, len(told) == 0, "told again")
}

func TestAssertHeldFindsWrongWiring(t *testing.T) {
	t.Parallel()
	broker := startFake(t)
	client := broker.Client("one")
	_, err := leasehold.AssertHeld(t.Context(), "a")
	fails(t, err, leasehold.ErrNotHeld)
	lease, err := client.LockAll(t.Context(), []leasehold.Target{{Name: "a"}, {Name: "b", Namespace: "elsewhere"}})
	ok(t, err)
	inner, err := client.Lock(lease.Context(), "c")
	ok(t, err)
	ctx := inner.Context()
	for _, what := range []func() (*leasehold.Lease, error){
		func() (*leasehold.Lease, error) { return leasehold.AssertHeld(ctx, "a") },
		func() (*leasehold.Lease, error) {
			return leasehold.AssertHeld(ctx, "b", leasehold.WithNamespace("elsewhere"))
		},
	} {
		found, err := what()
		is(t, err == nil && found == lease, "%v", err)
	}
	_, err = leasehold.AssertHeld(ctx, "b")
	fails(t, err, leasehold.ErrNotHeld)
	release(t, inner, lease)
	_, err = leasehold.AssertHeld(ctx, "a")
	fails(t, err, leasehold.ErrLeaseLost)
}

func TestManyGoroutinesWantOneLock(t *testing.T) {
	t.Parallel()
	broker := startFake(t)
	client := broker.Client("one")
	inside, most := 0, 0
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			err := client.Do(t.Context(), "a", func(context.Context, *leasehold.Lease) error {
				// The race detector sees it if the lock does not do its work.
				inside++
				most = max(most, inside)
				inside--
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	is(t, most == 1 && broker.HolderCount("a") == 0, "%d were inside", most)
}

func TestAnErrorOfTheFakeIsToldOnce(t *testing.T) {
	t.Parallel()
	broker := startFake(t)
	client := broker.Client("one")
	broker.Refuse("a", &leasehold.Error{Err: leasehold.ErrStoreRecovering, Message: "wait", RetryAfter: 3 * time.Second})
	broker.Refuse("b", leasehold.ErrQueueFull)
	_, err := client.Lock(t.Context(), "a")
	fails(t, err, leasehold.ErrStoreRecovering)
	var said *leasehold.Error
	is(t, errors.As(err, &said) && said.RetryAfter == 3*time.Second && said.Message == "wait", "%v", err)
	_, err = client.Lock(t.Context(), "b")
	fails(t, err, leasehold.ErrQueueFull)
	takes(t, client, "a")
}

func TestAReleaseIsWaitedForByTheNextInLine(t *testing.T) {
	t.Parallel()
	broker := startFake(t)
	client := broker.Client("one")
	lease := lock(t, client, "a")
	waiting := asks(t.Context(), client, "a")
	inLine(t, client, "a", 1)
	is(t, broker.QueueLength("a") == 1, "%d", broker.QueueLength("a"))
	is(t, broker.Lose("a") == 1, "nobody had it")
	next := waiting.granted(t)
	is(t, !lease.IsValid() && next.IsValid(), "%v %v", lease, next)
	release(t, next)
}
