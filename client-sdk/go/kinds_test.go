// Locks of all kinds and several of them, with a broker and with the one in memory alike.

package leasehold_test

import (
	"fmt"
	"testing"
	"time"

	"leasehold.dev/sdk"
)

func TestReadersShareAndAWriterWaitsForThem(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		one, other := lock(t, client, name, leasehold.WithShared()), lock(t, client, name, leasehold.WithShared())
		is(t, isTaken(t, client, name), "a writer beside readers")
		release(t, one)
		is(t, isTaken(t, client, name), "a writer beside a reader")
		release(t, other)
		takes(t, client, name)
	})
}

func TestPermitsAddUpToTheLimit(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		three := lock(t, client, name, leasehold.WithPermits(3, 5))
		two := lock(t, client, name, leasehold.WithPermits(2, 5))
		is(t, isTaken(t, client, name, leasehold.WithPermits(1, 5)), "6 of 5")
		release(t, three)
		again := lock(t, client, name, leasehold.WithPermits(3, 0))
		release(t, again, two)
	})
}

func TestSeveralLocksAreTakenAllOrNone(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		one, other, name := owned(t, url, "one"), owned(t, url, "other"), lockName(t)
		locks := []leasehold.Target{{Name: name + "-c"}, {Name: name + "-b"}, {Name: name + "-a"}}
		held := lock(t, other, locks[1].Name)
		_, err := one.TryLockAll(t.Context(), locks)
		fails(t, err, leasehold.ErrHeld)
		is(t, !isTaken(t, other, locks[0].Name), "a part was kept")
		release(t, held)
		lease, err := one.LockAll(t.Context(), locks)
		ok(t, err)
		for i, target := range locks {
			token, found := lease.FencingTokenOf(target)
			is(t, found && token > 0 && lease.Locks()[i] == "default/"+target.Name, "%v", lease)
			is(t, i > 0 || token == lease.FencingToken(), "the first is that of the first lock")
		}
		is(t, isTaken(t, other, locks[2].Name), "not all")
		release(t, lease)
		mixed, err := other.LockAll(t.Context(), []leasehold.Target{{Name: locks[2].Name, Shared: true}, locks[0]})
		ok(t, err)
		release(t, lock(t, one, locks[2].Name, leasehold.WithShared()), mixed)
	})
}

func TestALeaseIsEnteredAndLeftAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		one, other, name := owned(t, url, "one"), owned(t, url, "other"), lockName(t)
		outer := lock(t, one, name)
		rival := asks(t.Context(), other, name)
		inLine(t, one, name, 1)
		inner := lock(t, one, name, leasehold.WithUnder(outer))
		is(t, inner.FencingToken() == outer.FencingToken() && inner.ID() == outer.ID(), "%v %v", inner, outer)
		release(t, inner)
		is(t, outer.IsValid() && !inner.IsValid() && rival.isOpen(), "each gives back what it took")
		is(t, outer.Context().Err() == nil && inner.Context().Err() != nil, "each context ends with its own")
		inner = lock(t, one, name, leasehold.WithUnder(outer))
		release(t, outer)
		is(t, inner.IsValid() && !outer.IsValid() && rival.isOpen(), "each gives back what it took")
		release(t, inner)
		release(t, rival.granted(t))
	})
}

func TestAnExclusiveLockIsSteppedDownToASharedOne(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		one, other, name := owned(t, url, "one"), owned(t, url, "other"), lockName(t)
		writer := lock(t, one, name)
		reader := lock(t, one, name, leasehold.WithUnder(writer), leasehold.WithShared())
		is(t, isTaken(t, other, name, leasehold.WithShared()), "a reader beside a writer")
		release(t, writer)
		is(t, reader.IsValid() && reader.FencingToken() == writer.FencingToken(), "%v", reader)
		release(t, lock(t, other, name, leasehold.WithShared()), reader)
		takes(t, other, name)
	})
}

func TestALockIsAddedToALease(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		one, other, name := owned(t, url, "one"), owned(t, url, "other"), lockName(t)
		first := lock(t, one, name)
		added := lock(t, one, name+"-more", leasehold.WithUnder(first))
		is(t, added.ID() == first.ID() && added.Locks()[0] == "default/"+name+"-more", "%v", added)
		release(t, added)
		takes(t, other, name+"-more")
		is(t, isTaken(t, other, name), "the first went, too")
		release(t, first)
		takes(t, other, name)
		_, err := one.Lock(t.Context(), name, leasehold.WithUnder(first))
		fails(t, err, leasehold.ErrLeaseLost)
	})
}

func TestAnUpgradeIsDenied(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		shared := lock(t, client, name, leasehold.WithShared())
		_, err := client.Lock(t.Context(), name, leasehold.WithUnder(shared))
		fails(t, err, leasehold.ErrUpgradeDenied)
		release(t, shared)
	})
}

func TestAnotherLimitIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		held := lock(t, client, name, leasehold.WithPermits(1, 5))
		for _, option := range []leasehold.Option{leasehold.WithPermits(1, 6), leasehold.WithShared()} {
			_, err := client.TryLock(t.Context(), name, option)
			fails(t, err, leasehold.ErrLimitMismatch)
		}
		release(t, held)
	})
}

func TestANamespaceIsAnotherLock(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		elsewhere := leasehold.WithNamespace("elsewhere")
		one, other := lock(t, client, name), lock(t, client, name, elsewhere)
		is(t, other.Locks()[0] == "elsewhere/"+name, "%v", other)
		state, err := client.Get(t.Context(), name, elsewhere)
		ok(t, err)
		is(t, state.Holders[0].LeaseID == other.ID(), "%+v", state)
		release(t, one, other)
	})
}

func TestOneClientHoldsMoreThanAStreamCan(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		client, name := clientOf(t, url), lockName(t)
		var calls []*call
		for number := range 1_100 {
			lock := fmt.Sprintf("%s-%d", name, number)
			calls = append(calls, asks(t.Context(), client, lock, leasehold.WithTTL(20*time.Second)))
		}
		var leases []*leasehold.Lease
		for _, call := range calls {
			leases = append(leases, call.granted(t))
		}
		for _, lease := range leases {
			is(t, lease.IsValid(), "%v", lease)
		}
		ok(t, client.Close())
		takes(t, clientOf(t, url), name+"-1099")
	})
}
