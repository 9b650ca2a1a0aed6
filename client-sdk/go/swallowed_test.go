// Packets that are swallowed or late: validity counts from the sending, and a loss is known before anybody else has
// the lock.

package leasehold_test

import (
	"fmt"
	"testing"
	"time"

	"leasehold.dev/sdk"
	"leasehold.dev/sdk/internal/testbed"
)

func TestALossIsKnownBeforeSomebodyElseHasTheLock(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	for _, way := range []testbed.Way{testbed.Both, testbed.ToBroker, testbed.ToClient} {
		for _, phase := range []time.Duration{100, 600, 1_100} {
			t.Run(fmt.Sprintf("%d-%d", way, phase), func(t *testing.T) {
				t.Parallel()
				swallow(t, broker, way, phase*time.Millisecond)
			})
		}
	}
}

func swallow(t *testing.T, broker *testbed.Broker, way testbed.Way, phase time.Duration) {
	proxy := startProxy(t, broker)
	client, other, name := clientOf(t, proxy.URL()), clientOf(t, broker.URL()), lockName(t)
	told := make(chan time.Time, 10)
	onLost := leasehold.WithOnLost(func(*leasehold.Lease) { told <- time.Now() })
	lease := lock(t, client, name, leasehold.WithTTL(shortTTL), onLost)
	rival := asks(t.Context(), other, name, leasehold.WithTTL(20*time.Second))
	inLine(t, other, name, 1)
	time.Sleep(phase)
	is(t, lease.IsValid(), "%v", lease)
	proxy.Swallow(way)
	next := rival.granted(t)
	granted := time.Now()
	select {
	case at := <-told:
		is(t, at.Before(granted), "told %s too late", at.Sub(granted))
	default:
		t.Fatal("not told before somebody else has the lock")
	}
	is(t, proxy.Lost() > 0, "nothing was swallowed")
	is(t, next.FencingToken() > lease.FencingToken(), "tokens rise")

	// The network is back, and so is the client, but not its lock.
	proxy.Swallow(testbed.Nothing)
	proxy.Cut()
	takes(t, client, name+"-another")
	is(t, !lease.IsValid() && lease.LostReason() == leasehold.LostExpired && lease.Remaining() == 0, "%v", lease)
	fails(t, lease.Release(t.Context()), leasehold.ErrLeaseLost)
	is(t, next.IsValid() && len(told) == 0, "a lost lease gives nothing back, and is told once")
	release(t, next)
}

func TestValidityCountsFromTheSendingOfAHeartbeat(t *testing.T) {
	t.Parallel()
	const ttl, delay = 6 * time.Second, 900 * time.Millisecond
	proxy := startProxy(t, sharedBroker(t))
	lease := lock(t, clientOf(t, proxy.URL()), lockName(t), leasehold.WithTTL(ttl))
	proxy.Delay(delay)
	// Past what was acknowledged without delay.
	time.Sleep(ttl/3 + delay)
	most := time.Duration(0)
	for until := time.Now().Add(4 * time.Second); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		most = max(most, lease.Remaining())
	}
	is(t, lease.IsValid(), "%v", lease)
	is(t, most <= ttl-ttl/10-delay+10*time.Millisecond, "%s, as if it had been sent when its answer came", most)
	// What is said late of a lease that is over changes nothing.
	proxy.Swallow(testbed.ToBroker)
	lost(t, lease)
	proxy.Swallow(testbed.Nothing)
	time.Sleep(2 * delay)
	is(t, !lease.IsValid(), "%v", lease)
}

func TestALateGrantCountsFromItsCall(t *testing.T) {
	t.Parallel()
	const ttl, delay = 4 * time.Second, 1500 * time.Millisecond
	proxy := startProxy(t, sharedBroker(t))
	client := clientOf(t, proxy.URL())
	ok(t, client.Connect(t.Context()))
	proxy.Delay(delay)
	lease := lock(t, client, lockName(t), leasehold.WithTTL(ttl))
	is(t, lease.Remaining() <= ttl-500*time.Millisecond-delay, "%s", lease.Remaining())
	release(t, lease)
}

func TestAGrantThatComesTooLateIsHandedOutByAHeartbeat(t *testing.T) {
	t.Parallel()
	const ttl, delay = 2 * time.Second, 1100 * time.Millisecond
	proxy := startProxy(t, sharedBroker(t))
	client := clientOf(t, proxy.URL())
	ok(t, client.Connect(t.Context()))
	proxy.Delay(delay)
	call := asks(t.Context(), client, lockName(t), leasehold.WithTTL(ttl), leasehold.WithWait(3*time.Second))
	time.Sleep(delay / 2)
	// From the grant on everything is fast again.
	proxy.Delay(0)
	lease := call.granted(t)
	is(t, lease.Remaining() >= ttl/2-550*time.Millisecond, "%s", lease.Remaining())
	release(t, lease)
}

func TestAWaitWithoutLeasesLeavesADeadConnection(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	proxy := startProxy(t, brokers[0])
	client, other := clientOf(t, proxy.URL()+","+brokers[1].URL()), clientOf(t, brokers[1].URL())
	lease := lock(t, other, "a", leasehold.WithTTL(20*time.Second))
	waiting := asks(t.Context(), client, "a", leasehold.WithTTL(20*time.Second))
	inLine(t, other, "a", 1)
	proxy.Swallow(testbed.Both)
	proxy.Refuse(true)
	// Six seconds without a heartbeat would end the wait.
	time.Sleep(7 * time.Second)
	inLine(t, other, "a", 1)
	release(t, lease)
	release(t, waiting.granted(t))
}
