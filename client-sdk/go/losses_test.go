// Every way in which a lock is lost, and the outages in which it is not, with real brokers.

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

func TestAHolderWithoutABrokerStopsTrustingByItself(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	client := clientOf(t, broker.URL())
	lease := lock(t, client, "a", leasehold.WithTTL(shortTTL))
	time.Sleep(shortTTL)
	killed := time.Now()
	broker.Kill()
	is(t, lease.IsValid(), "its time is not over yet")
	is(t, lost(t, lease) == leasehold.LostExpired, "%v", lease)
	is(t, time.Since(killed) <= shortTTL-500*time.Millisecond+ticks, "told after %s", time.Since(killed))
	fails(t, lease.Release(t.Context()), leasehold.ErrLeaseLost)
	ok(t, broker.Restart())
	takes(t, client, "a")
	is(t, !lease.IsValid(), "nothing is taken again silently")
}

func TestAStoreThatLosesALockIsToldOf(t *testing.T) {
	t.Parallel()
	redis := startRedis(t)
	client := clientOf(t, startBroker(t, redis.URL()).URL())
	lease := lock(t, client, "a")
	_, err := redis.Command("FLUSHALL")
	ok(t, err)
	is(t, lost(t, lease) == leasehold.LostByStore, "%v", lease)
	var why *leasehold.LeaseLostError
	is(t, errors.As(lease.Release(t.Context()), &why) && why.Reason == leasehold.LostByStore, "%v", why)
	// Refused for now is repeated until 5 s after the wait.
	_, err = client.Lock(t.Context(), "b", leasehold.WithWait(0))
	fails(t, err, leasehold.ErrStoreRecovering)
	var said *leasehold.Error
	is(t, errors.As(err, &said) && said.RetryAfter > 0, "%v", err)
}

func TestALockIsHeldNoLongerThanMaxHold(t *testing.T) {
	t.Parallel()
	client := clientOf(t, sharedBroker(t).URL())
	lease := lock(t, client, lockName(t), leasehold.WithTTL(shortTTL), leasehold.WithMaxHold(shortTTL))
	granted := time.Now()
	// The client's own clock may be first.
	why := lost(t, lease)
	is(t, why == leasehold.LostMaxHold || why == leasehold.LostExpired, "%v", why)
	is(t, time.Since(granted) <= shortTTL+ticks, "%s", time.Since(granted))
}

// Where another broker is to be found in time, on a busy machine, too.
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
	is(t, lease.IsValid() && inner.IsValid() && lease.Remaining() > 400*time.Millisecond, "%v %v", lease, inner)
	release(t, inner, lease)
	is(t, takes(t, client, "a") > lease.FencingToken(), "both entries are given back")
}

func TestABrokerThatStandsStillIsLeft(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	client := clientOf(t, urlsOf(brokers))
	lease := lock(t, client, "a", leasehold.WithTTL(longTTL))
	ok(t, brokers[0].Pause())
	time.Sleep(longExpiry + 500*time.Millisecond)
	is(t, lease.IsValid(), "%v", lease)
	release(t, lease)
	takes(t, client, "a")
}

func TestADrainMovesLeasesAndWaits(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	client, observer := clientOf(t, urlsOf(brokers)), clientOf(t, brokers[1].URL())
	lease := lock(t, client, "a", leasehold.WithTTL(shortTTL))
	waiting := asks(t.Context(), client, "a", leasehold.WithTTL(shortTTL))
	inLine(t, observer, "a", 1)
	ok(t, brokers[0].Terminate())
	code, err := brokers[0].Ended()
	ok(t, err)
	is(t, code == 0, "%d", code)
	time.Sleep(expiry)
	is(t, lease.IsValid() && waiting.isOpen(), "%v", lease)
	release(t, lease)
	next := waiting.granted(t)
	is(t, next.FencingToken() > lease.FencingToken(), "tokens rise")
	release(t, next)
}

func TestAWaitKeepsItsPlaceWhenItsBrokerDies(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	client, other := clientOf(t, urlsOf(brokers)), clientOf(t, brokers[1].URL())
	lease := lock(t, other, "a")
	first := asks(t.Context(), client, "a")
	inLine(t, other, "a", 1)
	second := asks(t.Context(), other, "a")
	inLine(t, other, "a", 2)
	brokers[0].Kill()
	// The place of the wait is its own again once its call is repeated.
	takes(t, client, "b")
	release(t, lease)
	leads := first.granted(t)
	is(t, second.isOpen(), "nobody passes it")
	release(t, leads)
	release(t, second.granted(t))
}

func TestAReleaseWithoutAnAnswerIsRepeatedElsewhere(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	client := clientOf(t, urlsOf(brokers))
	lease := lock(t, client, "a")
	ok(t, brokers[0].Pause())
	released := make(chan error, 1)
	go func() { released <- lease.Release(t.Context()) }()
	waits(t, lease.Context().Done())
	brokers[0].Kill()
	ok(t, <-released)
	is(t, !isTaken(t, client, "a"), "it is given back")
}

func TestAPartWhoseReleaseHasNoAnswerIsReleasedElsewhere(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"a", "b"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			brokers := twoBrokers(t)
			// The other broker is out of reach at first, so that the client is connected through this proxy.
			proxy, other := startProxy(t, brokers[0]), startProxy(t, brokers[1])
			other.Refuse(true)
			client := clientOf(t, proxy.URL()+","+other.URL())
			// Long enough for the move to the other broker on a busy machine.
			lease := lock(t, client, "a", leasehold.WithTTL(2*shortTTL))
			added := lock(t, client, part, leasehold.WithUnder(lease))
			before := proxy.Lost()
			proxy.Swallow(testbed.ToClient)
			other.Refuse(false)
			released := make(chan error, 1)
			go func() { released <- added.Release(t.Context()) }()
			proxy.WaitLost(before)
			proxy.Refuse(true)
			proxy.Cut()
			ok(t, <-released)
			time.Sleep(2 * expiry)
			is(t, lease.IsValid(), "%v", lease)
			takes(t, client, "b")
			release(t, lease)
			takes(t, client, "a")
		})
	}
}

func TestAnAcquireWithoutAnAnswerIsTheSameWhenRepeated(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	proxy := startProxy(t, brokers[0])
	client, observer := clientOf(t, proxy.URL()+","+brokers[1].URL()), clientOf(t, brokers[1].URL())
	ok(t, client.Connect(t.Context()))
	proxy.Swallow(testbed.ToClient)
	call := asks(t.Context(), client, "a")
	var state leasehold.LockState
	for len(state.Holders) == 0 {
		var err error
		state, err = observer.Get(t.Context(), "a")
		ok(t, err)
	}
	proxy.Refuse(true)
	proxy.Cut()
	lease := call.granted(t)
	is(t, lease.ID() == state.Holders[0].LeaseID, "another lease than the grant that was not heard of")
	is(t, lease.FencingToken() == state.LastFencingToken, "%v %+v", lease, state)
	release(t, lease)
}

func TestACallThatNobodyAnswersSaysSo(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	client := clientOf(t, broker.URL())
	ok(t, client.Connect(t.Context()))
	broker.Kill()
	begun := time.Now()
	_, err := client.TryLock(t.Context(), "a")
	fails(t, err, leasehold.ErrUnavailable)
	is(t, strings.Contains(err.Error(), broker.Addr), "%v", err)
	took := time.Since(begun)
	is(t, took >= 5*time.Second && took < 8*time.Second, "%s", took)
}

func TestAStoreThatCannotBeReachedIsWaitedFor(t *testing.T) {
	t.Parallel()
	redis := startRedis(t)
	client := clientOf(t, startBroker(t, redis.URL()).URL())
	lease := lock(t, client, "a")
	ok(t, redis.Pause())
	call := asks(t.Context(), client, "b")
	time.Sleep(1500 * time.Millisecond)
	is(t, call.isOpen(), "it has ended")
	ok(t, redis.Resume())
	release(t, call.granted(t), lease)
}

func TestAStoreWithoutMemoryIsToldOfAndKeepsLeasesAlive(t *testing.T) {
	t.Parallel()
	redis := startRedis(t)
	client := clientOf(t, startBroker(t, redis.URL()).URL())
	lease := lock(t, client, "a", leasehold.WithTTL(shortTTL))
	_, err := redis.Command("CONFIG", "SET", "maxmemory", "1")
	ok(t, err)
	_, err = client.Lock(t.Context(), "b")
	fails(t, err, leasehold.ErrStoreFull)
	time.Sleep(expiry)
	is(t, lease.IsValid(), "%v", lease)
	release(t, lease)
}

func TestLooksWithoutABrokerSaySo(t *testing.T) {
	t.Parallel()
	client := clientOf(t, nowhere(t)+","+nowhere(t))
	fails(t, client.Connect(t.Context()), leasehold.ErrUnreachable)
	_, err := client.Get(t.Context(), "a")
	fails(t, err, leasehold.ErrUnavailable)
	is(t, strings.Contains(err.Error(), "no broker"), "%v", err)
}

func TestEndpointsAreTriedInOrder(t *testing.T) {
	t.Parallel()
	client := clientOf(t, nowhere(t)+", "+sharedBroker(t).URL())
	ok(t, client.Connect(t.Context()))
	takes(t, client, lockName(t))
}

func nowhere(t *testing.T) string {
	t.Helper()
	port, err := testbed.FreePort()
	ok(t, err)
	return fmt.Sprintf("http://127.0.0.1:%d", port)
}

func TestLeasesAndWaitsShareOneStream(t *testing.T) {
	t.Parallel()
	proxy := startProxy(t, sharedBroker(t))
	client, name := clientOf(t, proxy.URL()), lockName(t)
	first := lock(t, client, name)
	var calls []*call
	for range 20 {
		calls = append(calls, asks(t.Context(), client, name))
	}
	inLine(t, client, name, 20)
	release(t, first)
	for range calls {
		var next *call
		for next == nil {
			for i, call := range calls {
				if !call.isOpen() {
					next, calls = call, append(calls[:i], calls[i+1:]...)
					break
				}
			}
		}
		release(t, next.granted(t))
	}
	is(t, proxy.Opened() == 1, "%d connections", proxy.Opened())
}

func TestAWaitThatIsRepeatedLateHasTimedOut(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	proxy := startProxy(t, broker)
	client, other := clientOf(t, proxy.URL()), clientOf(t, broker.URL())
	lease := lock(t, other, "a", leasehold.WithTTL(20*time.Second))
	call := asks(t.Context(), client, "a", leasehold.WithWait(time.Second))
	inLine(t, other, "a", 1)
	proxy.Refuse(true)
	proxy.Cut()
	time.Sleep(1500 * time.Millisecond)
	is(t, call.isOpen(), "its outcome is not known")
	proxy.Refuse(false)
	_, err := call.ended(t)
	fails(t, err, leasehold.ErrWaitTimeout)
	var said *leasehold.Error
	is(t, errors.As(err, &said) && said.Holders[0].LeaseID == lease.ID(), "%v", err)
}
