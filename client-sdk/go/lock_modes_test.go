// Locks of all modes, and several locks at once, with a real broker and with the broker in memory.

package leasehold_test

import (
	"fmt"
	"testing"
	"time"

	"leasehold.dev/sdk"
)

func TestReadersShareAndAWriterWaitsForThem(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		one, other := lock(t, client, name, leasehold.WithShared()), lock(t, client, name, leasehold.WithShared())
		assert(t, isHeld(t, client, name), "exclusive access besides shared holders")
		release(t, one)
		assert(t, isHeld(t, client, name), "exclusive access besides a shared holder")
		release(t, other)
		lockAndRelease(t, client, name)
	})
}

func TestPermitsAddUpToTheLimit(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		three := lock(t, client, name, leasehold.WithPermits(3, 5))
		two := lock(t, client, name, leasehold.WithPermits(2, 5))
		assert(t, isHeld(t, client, name, leasehold.WithPermits(1, 5)), "6 of 5 permits were granted")
		release(t, three)
		again := lock(t, client, name, leasehold.WithPermits(3, 0))
		release(t, again, two)
	})
}

func TestSeveralLocksAreAcquiredAllOrNone(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		one, other, name := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other"), lockName(t)
		locks := []leasehold.Target{{Name: name + "-c"}, {Name: name + "-b"}, {Name: name + "-a"}}
		held := lock(t, other, locks[1].Name)
		_, err := one.TryLockAll(t.Context(), locks)
		assertErr(t, err, leasehold.ErrHeld)
		assert(t, !isHeld(t, other, locks[0].Name), "a rejected acquire kept a lock")
		release(t, held)
		lease, err := one.LockAll(t.Context(), locks)
		ok(t, err)
		for i, target := range locks {
			token, found := lease.FencingTokenOf(target)
			assert(t, found && token > 0 && lease.Locks()[i] == "default/"+target.Name, "%v", lease)
			assert(t, i > 0 || token == lease.FencingToken(), "FencingToken is not that of the first lock")
		}
		assert(t, isHeld(t, other, locks[2].Name), "a lock was not acquired")
		release(t, lease)
		mixed, err := other.LockAll(t.Context(), []leasehold.Target{{Name: locks[2].Name, Shared: true}, locks[0]})
		ok(t, err)
		release(t, lock(t, one, locks[2].Name, leasehold.WithShared()), mixed)
	})
}

func TestALeaseIsReentered(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		one, other, name := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other"), lockName(t)
		outer := lock(t, one, name)
		rival := startLock(t.Context(), other, name)
		waitQueueLength(t, one, name, 1)
		inner := lock(t, one, name, leasehold.WithUnder(outer))
		assert(t, inner.FencingToken() == outer.FencingToken() && inner.ID() == outer.ID(), "%v %v", inner, outer)
		release(t, inner)
		assert(t, outer.IsValid() && !inner.IsValid() && rival.isPending(), "a release ended the entry of the other lease")
		assert(t, outer.Context().Err() == nil && inner.Context().Err() != nil, "a context did not end with its own lease")
		inner = lock(t, one, name, leasehold.WithUnder(outer))
		release(t, outer)
		assert(t, inner.IsValid() && !outer.IsValid() && rival.isPending(), "a release ended the entry of the other lease")
		release(t, inner)
		release(t, rival.waitGranted(t))
	})
}

func TestAnExclusiveLockIsDowngradedToShared(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		one, other, name := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other"), lockName(t)
		writer := lock(t, one, name)
		reader := lock(t, one, name, leasehold.WithUnder(writer), leasehold.WithShared())
		assert(t, isHeld(t, other, name, leasehold.WithShared()), "shared access besides an exclusive holder")
		release(t, writer)
		assert(t, reader.IsValid() && reader.FencingToken() == writer.FencingToken(), "%v", reader)
		release(t, lock(t, other, name, leasehold.WithShared()), reader)
		lockAndRelease(t, other, name)
	})
}

func TestALockIsAddedToALease(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		one, other, name := clientWithOwner(t, url, "one"), clientWithOwner(t, url, "other"), lockName(t)
		first := lock(t, one, name)
		added := lock(t, one, name+"-more", leasehold.WithUnder(first))
		assert(t, added.ID() == first.ID() && added.Locks()[0] == "default/"+name+"-more", "%v", added)
		release(t, added)
		lockAndRelease(t, other, name+"-more")
		assert(t, isHeld(t, other, name), "the release also released the first lock")
		release(t, first)
		lockAndRelease(t, other, name)
		_, err := one.Lock(t.Context(), name, leasehold.WithUnder(first))
		assertErr(t, err, leasehold.ErrLeaseLost)
	})
}

func TestAnUpgradeIsDenied(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		shared := lock(t, client, name, leasehold.WithShared())
		_, err := client.Lock(t.Context(), name, leasehold.WithUnder(shared))
		assertErr(t, err, leasehold.ErrUpgradeDenied)
		release(t, shared)
	})
}

func TestAnotherLimitIsRejected(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		held := lock(t, client, name, leasehold.WithPermits(1, 5))
		for _, option := range []leasehold.Option{leasehold.WithPermits(1, 6), leasehold.WithShared()} {
			_, err := client.TryLock(t.Context(), name, option)
			assertErr(t, err, leasehold.ErrLimitMismatch)
		}
		release(t, held)
	})
}

func setLimit(t *testing.T, client *leasehold.Client, name string, limit int, options ...leasehold.Option) int {
	t.Helper()
	previous, err := client.SetLimit(t.Context(), name, limit, options...)
	ok(t, err)
	return previous
}

func removeLimit(t *testing.T, client *leasehold.Client, name string, options ...leasehold.Option) int {
	t.Helper()
	removed, err := client.RemoveLimit(t.Context(), name, options...)
	ok(t, err)
	return removed
}

func assertUsage(t *testing.T, client *leasehold.Client, name string, want leasehold.PermitUsage) {
	t.Helper()
	state, err := client.Get(t.Context(), name)
	ok(t, err)
	assert(t, state.PermitUsage != nil && *state.PermitUsage == want, "%+v instead of %+v", state.PermitUsage, want)
}

func TestASetLimitOverridesTheLimitsOfCallers(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		assert(t, setLimit(t, client, name, 2) == 0, "a limit before the first one")
		assert(t, setLimit(t, client, name, 3, leasehold.WithNamespace("elsewhere")) == 0, "the namespace was ignored")
		assertUsage(t, client, name, leasehold.PermitUsage{Limit: 2, IsLimitSet: true})
		one := lock(t, client, name, leasehold.WithPermits(1, 5))
		other := lock(t, client, name, leasehold.WithPermits(1, 6))
		assert(t, isHeld(t, client, name, leasehold.WithPermits(1, 5)), "3 of 2 permits were granted")
		for _, options := range [][]leasehold.Option{{leasehold.WithPermits(3, 5)}, {leasehold.WithShared()}, nil} {
			_, err := client.TryLock(t.Context(), name, options...)
			assertErr(t, err, leasehold.ErrLimitMismatch)
		}
		release(t, one, other)
		_, err := client.TryLock(t.Context(), name)
		assertErr(t, err, leasehold.ErrLimitMismatch)
		assert(t, removeLimit(t, client, name) == 2, "another limit was removed")
		assert(t, removeLimit(t, client, name, leasehold.WithNamespace("elsewhere")) == 3, "the namespace was ignored")
		lockAndRelease(t, client, name)
	})
}

func TestARemovedLimitIsInUseUntilTheLockIsIdle(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		setLimit(t, client, name, 2)
		held := lock(t, client, name, leasehold.WithPermits(1, 5))
		assert(t, removeLimit(t, client, name) == 2, "another limit was removed")
		assert(t, removeLimit(t, client, name) == 0, "a limit was removed twice")
		assertUsage(t, client, name, leasehold.PermitUsage{Limit: 2, Used: 1})
		_, err := client.TryLock(t.Context(), name, leasehold.WithPermits(1, 5))
		assertErr(t, err, leasehold.ErrLimitMismatch)
		release(t, held)
		held = lock(t, client, name, leasehold.WithPermits(5, 5))
		assertUsage(t, client, name, leasehold.PermitUsage{Limit: 5, Used: 5})
		release(t, held)
	})
}

func TestALowerLimitRevokesNothingAndStopsGrants(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		held := lock(t, client, name, leasehold.WithPermits(3, 5))
		tooLarge := startLock(t.Context(), client, name, leasehold.WithPermits(3, 5))
		waitQueueLength(t, client, name, 1)
		assert(t, setLimit(t, client, name, 2) == 5, "another limit was in use")
		_, err := tooLarge.wait(t)
		assertErr(t, err, leasehold.ErrLimitMismatch)
		usage := leasehold.PermitUsage{Limit: 2, Used: 3, IsLimitSet: true}
		assertUsage(t, client, name, usage)
		assert(t, usage.Free() == 0, "%d permits are free", usage.Free())
		first := startLock(t.Context(), client, name, leasehold.WithPermits(1, 5))
		waitQueueLength(t, client, name, 1)
		assert(t, held.IsValid(), "%v", held)
		release(t, held)
		second := startLock(t.Context(), client, name, leasehold.WithPermits(2, 5))
		lease := first.waitGranted(t)
		waitQueueLength(t, client, name, 1)
		assert(t, setLimit(t, client, name, 4) == 2, "another limit was in use")
		release(t, second.waitGranted(t), lease)
		usage = leasehold.PermitUsage{Limit: 4, IsLimitSet: true}
		assertUsage(t, client, name, usage)
		assert(t, usage.Free() == 4, "%d permits are free", usage.Free())
		assert(t, removeLimit(t, client, name) == 4, "another limit was removed")
	})
}

func TestALockInAnotherModeHasNoLimit(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		for _, options := range [][]leasehold.Option{{leasehold.WithShared()}, nil} {
			held := lock(t, client, name, options...)
			_, err := client.SetLimit(t.Context(), name, 2)
			assertErr(t, err, leasehold.ErrLimitMismatch)
			state, err := client.Get(t.Context(), name)
			ok(t, err)
			assert(t, state.PermitUsage == nil, "%+v", state.PermitUsage)
			release(t, held)
		}
	})
}

func TestANamespaceIsAnotherLock(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		elsewhere := leasehold.WithNamespace("elsewhere")
		one, other := lock(t, client, name), lock(t, client, name, elsewhere)
		assert(t, other.Locks()[0] == "elsewhere/"+name, "%v", other)
		state, err := client.Get(t.Context(), name, elsewhere)
		ok(t, err)
		assert(t, state.Holders[0].LeaseID == other.ID(), "%+v", state)
		release(t, one, other)
	})
}

func TestOneClientHoldsMoreLeasesThanAStreamCan(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		var calls []*lockCall
		for number := range 1_100 {
			lock := fmt.Sprintf("%s-%d", name, number)
			calls = append(calls, startLock(t.Context(), client, lock, leasehold.WithTTL(20*time.Second)))
		}
		var leases []*leasehold.Lease
		for _, call := range calls {
			leases = append(leases, call.waitGranted(t))
		}
		for _, lease := range leases {
			assert(t, lease.IsValid(), "%v", lease)
		}
		ok(t, client.Close())
		lockAndRelease(t, clientOf(t, url), name+"-1099")
	})
}
