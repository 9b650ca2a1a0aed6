// All reasons for which a lock is lost, and outages in which it is not lost, with real brokers.

package leasehold_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"leasehold.dev/sdk"
	"leasehold.dev/sdk/internal/testbed"
)

func urlsOf(brokers [2]*testbed.Broker) string { return brokers[0].URL() + "," + brokers[1].URL() }

func TestALeaseWithoutABrokerExpires(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	client := clientOf(t, broker.URL())
	lease := lock(t, client, "a", leasehold.WithTTL(shortTTL))
	time.Sleep(shortTTL)
	killed := time.Now()
	broker.Kill()
	assert(t, lease.IsValid(), "the lease expired too early")
	assert(t, waitLost(t, lease) == leasehold.LostExpired, "%v", lease)
	assert(t, time.Since(killed) <= shortTTL-500*time.Millisecond+lossDelayMax, "lost after %s", time.Since(killed))
	assertErr(t, lease.Release(t.Context()), leasehold.ErrLeaseLost)
	ok(t, broker.Restart())
	lockAndRelease(t, client, "a")
	assert(t, !lease.IsValid(), "the lost lease is valid again")
}

func TestAStoreThatLosesItsDataEndsTheLease(t *testing.T) {
	t.Parallel()
	redis := startRedis(t)
	client := clientOf(t, startBroker(t, redis.URL()).URL())
	lease := lock(t, client, "a")
	waited := make(chan leasehold.QueuePosition, 100)
	waiter := startLock(t.Context(), client, "a", leasehold.WithWait(4*time.Second),
		leasehold.WithOnQueue(func(position leasehold.QueuePosition) { waited <- position }))
	position := <-waited
	assert(t, position.Recovery == nil, "%+v", position.Recovery)
	_, err := redis.Command("FLUSHALL")
	ok(t, err)
	assert(t, waitLost(t, lease) == leasehold.LostByStore, "%v", lease)
	for position.Recovery == nil {
		select {
		case position = <-waited:
		case <-waiter.done:
			t.Fatalf("the call ended without a position that has the recovery: %v", waiter.err)
		}
	}
	assert(t, position.Position == 1 && position.Recovery.Cause == "was found empty", "%+v", position)
	var loss *leasehold.LeaseLostError
	assert(t, errors.As(lease.Release(t.Context()), &loss) && loss.Reason == leasehold.LostByStore, "%v", loss)
	// The client repeats a call after a temporary rejection until 5 s after the end of its wait.
	var positions []leasehold.QueuePosition
	onQueue := func(position leasehold.QueuePosition) { positions = append(positions, position) }
	_, err = client.Lock(t.Context(), "b", leasehold.WithWait(0), leasehold.WithOnQueue(onQueue))
	assertErr(t, err, leasehold.ErrStoreRecovering)
	var detailed *leasehold.Error
	assert(t, errors.As(err, &detailed) && detailed.RetryAfter > 0, "%v", err)
	assert(t, len(positions) == 1 && positions[0].Position == 0, "%+v", positions)
	recovery := positions[0].Recovery
	assert(t, recovery.Cause == "was found empty" && recovery.Remaining > 0 && !recovery.Since.IsZero(), "%+v", recovery)
}

func TestALockIsHeldNoLongerThanMaxHold(t *testing.T) {
	t.Parallel()
	client := clientOf(t, sharedBroker(t).URL())
	lease := lock(t, client, lockName(t), leasehold.WithTTL(shortTTL), leasehold.WithMaxHold(shortTTL))
	granted := time.Now()
	// The client's own deadline may come first.
	reason := waitLost(t, lease)
	assert(t, reason == leasehold.LostMaxHold || reason == leasehold.LostExpired, "%v", reason)
	assert(t, time.Since(granted) <= shortTTL+lossDelayMax, "%s", time.Since(granted))
}

// For tests in which the client must find another broker in time, also on a busy machine.
const (
	longTTL    = 5 * time.Second
	longExpiry = longTTL*6/5 + 250*time.Millisecond
)

func TestAKilledBrokerCostsNoLease(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	client := clientOf(t, urlsOf(brokers))
	lease := lock(t, client, "a", leasehold.WithTTL(longTTL))
	inner := lock(t, client, "a", leasehold.WithUnder(lease))
	brokers[0].Kill()
	time.Sleep(longExpiry + 500*time.Millisecond)
	assert(t, lease.IsValid() && inner.IsValid() && lease.Remaining() > 400*time.Millisecond, "%v %v", lease, inner)
	release(t, inner, lease)
	assert(t, lockAndRelease(t, client, "a") > lease.FencingToken(), "the token did not rise")
}

func TestAStoppedBrokerIsReplacedByAnother(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	client := clientOf(t, urlsOf(brokers))
	lease := lock(t, client, "a", leasehold.WithTTL(longTTL))
	ok(t, brokers[0].Pause())
	time.Sleep(longExpiry + 500*time.Millisecond)
	assert(t, lease.IsValid(), "%v", lease)
	release(t, lease)
	lockAndRelease(t, client, "a")
}

func TestADrainMovesLeasesAndWaiters(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	client, observer := clientOf(t, urlsOf(brokers)), clientOf(t, brokers[1].URL())
	lease := lock(t, client, "a", leasehold.WithTTL(shortTTL))
	waiter := startLock(t.Context(), client, "a", leasehold.WithTTL(shortTTL))
	waitQueueLength(t, observer, "a", 1)
	ok(t, brokers[0].Terminate())
	code, err := brokers[0].WaitForExit()
	ok(t, err)
	assert(t, code == 0, "%d", code)
	time.Sleep(expiry)
	assert(t, lease.IsValid() && waiter.isPending(), "%v", lease)
	release(t, lease)
	next := waiter.waitGranted(t)
	assert(t, next.FencingToken() > lease.FencingToken(), "the token did not rise")
	release(t, next)
}

func TestAWaiterKeepsItsPositionWhenItsBrokerIsKilled(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	client, other := clientOf(t, urlsOf(brokers)), clientOf(t, brokers[1].URL())
	lease := lock(t, other, "a")
	first := startLock(t.Context(), client, "a")
	waitQueueLength(t, other, "a", 1)
	second := startLock(t.Context(), other, "a")
	waitQueueLength(t, other, "a", 2)
	brokers[0].Kill()
	// This acquire succeeds only after the failover, in which the pending call was repeated and kept its queue
	// position.
	lockAndRelease(t, client, "b")
	release(t, lease)
	leader := first.waitGranted(t)
	assert(t, second.isPending(), "the second waiter was granted first")
	release(t, leader)
	release(t, second.waitGranted(t))
}

func TestAReleaseWithoutAResponseIsRepeatedAtAnotherBroker(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	client := clientOf(t, urlsOf(brokers))
	lease := lock(t, client, "a")
	ok(t, brokers[0].Pause())
	released := make(chan error, 1)
	go func() { released <- lease.Release(t.Context()) }()
	waitFor(t, lease.Context().Done())
	brokers[0].Kill()
	ok(t, <-released)
	assert(t, !isHeld(t, client, "a"), "the lock is still held")
}

func TestAPartialReleaseWithoutAResponseIsRepeatedAtAnotherBroker(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "b"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers := twoBrokers(t)
			// The other broker is unreachable at first, so that the client connects through this proxy.
			proxy, other := startProxy(t, brokers[0]), startProxy(t, brokers[1])
			other.RefuseConnections(true)
			client := clientOf(t, proxy.URL()+","+other.URL())
			// Long enough for the failover to the other broker on a busy machine.
			lease := lock(t, client, "a", leasehold.WithTTL(2*shortTTL))
			added := lock(t, client, name, leasehold.WithUnder(lease))
			before := proxy.DroppedBytes()
			proxy.Drop(testbed.ToClient)
			other.RefuseConnections(false)
			released := make(chan error, 1)
			go func() { released <- added.Release(t.Context()) }()
			proxy.WaitForDrop(before)
			proxy.RefuseConnections(true)
			proxy.CloseConnections()
			ok(t, <-released)
			time.Sleep(2 * expiry)
			assert(t, lease.IsValid(), "%v", lease)
			lockAndRelease(t, client, "b")
			release(t, lease)
			lockAndRelease(t, client, "a")
		})
	}
}

func TestARepeatedAcquireReturnsTheSameLease(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	proxy := startProxy(t, brokers[0])
	client, observer := clientOf(t, proxy.URL()+","+brokers[1].URL()), clientOf(t, brokers[1].URL())
	ok(t, client.Connect(t.Context()))
	proxy.Drop(testbed.ToClient)
	call := startLock(t.Context(), client, "a")
	var state leasehold.LockState
	for len(state.Holders) == 0 {
		var err error
		state, err = observer.Get(t.Context(), "a")
		ok(t, err)
	}
	proxy.RefuseConnections(true)
	proxy.CloseConnections()
	lease := call.waitGranted(t)
	assert(t, lease.ID() == state.Holders[0].LeaseID, "another lease than that of the lost response")
	assert(t, lease.FencingToken() == state.LastFencingToken, "%v %+v", lease, state)
	release(t, lease)
}

func TestACallWithoutAResponseIsUnavailable(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	client := clientOf(t, broker.URL())
	ok(t, client.Connect(t.Context()))
	broker.Kill()
	start := time.Now()
	_, err := client.TryLock(t.Context(), "a")
	assertErr(t, err, leasehold.ErrUnavailable)
	assert(t, strings.Contains(err.Error(), broker.Addr), "%v", err)
	took := time.Since(start)
	assert(t, took >= 5*time.Second && took < 8*time.Second, "%s", took)
}

func TestACallWaitsForAnUnreachableStore(t *testing.T) {
	t.Parallel()
	redis := startRedis(t)
	client := clientOf(t, startBroker(t, redis.URL()).URL())
	lease := lock(t, client, "a")
	ok(t, redis.Pause())
	call := startLock(t.Context(), client, "b")
	time.Sleep(1500 * time.Millisecond)
	assert(t, call.isPending(), "the call has ended")
	ok(t, redis.Resume())
	release(t, call.waitGranted(t), lease)
}

func TestAFullStoreRejectsAcquiresAndRenewsLeases(t *testing.T) {
	t.Parallel()
	redis := startRedis(t)
	client := clientOf(t, startBroker(t, redis.URL()).URL())
	lease := lock(t, client, "a", leasehold.WithTTL(shortTTL))
	_, err := redis.Command("CONFIG", "SET", "maxmemory", "1")
	ok(t, err)
	_, err = client.Lock(t.Context(), "b")
	assertErr(t, err, leasehold.ErrStoreFull)
	time.Sleep(expiry)
	assert(t, lease.IsValid(), "%v", lease)
	release(t, lease)
}

func TestUnaryCallsWithoutABrokerAreUnavailable(t *testing.T) {
	t.Parallel()
	client := clientOf(t, unusedEndpoint(t)+","+unusedEndpoint(t))
	assertErr(t, client.Connect(t.Context()), leasehold.ErrUnreachable)
	_, getErr := client.Get(t.Context(), "a")
	_, setErr := client.SetLimit(t.Context(), "a", 2)
	for _, err := range []error{getErr, setErr} {
		assertErr(t, err, leasehold.ErrUnavailable)
		assert(t, strings.Contains(err.Error(), "no broker"), "%v", err)
	}
}

func TestEndpointsAreTriedInOrder(t *testing.T) {
	t.Parallel()
	client := clientOf(t, unusedEndpoint(t)+", "+sharedBroker(t).URL())
	ok(t, client.Connect(t.Context()))
	lockAndRelease(t, client, lockName(t))
}

func unusedEndpoint(t *testing.T) string {
	t.Helper()
	port, err := testbed.FreePort()
	ok(t, err)
	return fmt.Sprintf("http://127.0.0.1:%d", port)
}

func TestLeasesAndWaitersShareOneStream(t *testing.T) {
	t.Parallel()
	proxy := startProxy(t, sharedBroker(t))
	client, name := clientOf(t, proxy.URL()), lockName(t)
	first := lock(t, client, name)
	var calls []*lockCall
	for range 20 {
		calls = append(calls, startLock(t.Context(), client, name))
	}
	waitQueueLength(t, client, name, 20)
	release(t, first)
	for range calls {
		var next *lockCall
		for next == nil {
			for i, call := range calls {
				if !call.isPending() {
					next, calls = call, append(calls[:i], calls[i+1:]...)
					break
				}
			}
		}
		release(t, next.waitGranted(t))
	}
	assert(t, proxy.AcceptedCount() == 1, "%d connections", proxy.AcceptedCount())
}

func TestAnAcquireThatIsRepeatedLateTimesOut(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	proxy := startProxy(t, broker)
	client, other := clientOf(t, proxy.URL()), clientOf(t, broker.URL())
	lease := lock(t, other, "a", leasehold.WithTTL(20*time.Second))
	call := startLock(t.Context(), client, "a", leasehold.WithWait(time.Second))
	waitQueueLength(t, other, "a", 1)
	proxy.RefuseConnections(true)
	proxy.CloseConnections()
	time.Sleep(1500 * time.Millisecond)
	assert(t, call.isPending(), "the call has ended without a broker")
	proxy.RefuseConnections(false)
	_, err := call.wait(t)
	assertErr(t, err, leasehold.ErrWaitTimeout)
	var detailed *leasehold.Error
	assert(t, errors.As(err, &detailed) && detailed.Holders[0].LeaseID == lease.ID(), "%v", err)
}
