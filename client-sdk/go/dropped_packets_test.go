// Dropped or delayed packets: validity counts from the sending, and a loss is detected before another caller has the
// lock.

package leasehold_test

import (
	"fmt"
	"testing"
	"time"

	"leasehold.dev/sdk"
	"leasehold.dev/sdk/internal/testbed"
)

func TestALossIsDetectedBeforeTheNextGrant(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	for _, direction := range []testbed.Direction{testbed.Both, testbed.ToBroker, testbed.ToClient} {
		for _, phase := range []time.Duration{100, 600, 1_100} {
			t.Run(fmt.Sprintf("%d-%d", direction, phase), func(t *testing.T) {
				t.Parallel()
				testDroppedPackets(t, broker, direction, phase*time.Millisecond)
			})
		}
	}
}

func testDroppedPackets(t *testing.T, broker *testbed.Broker, direction testbed.Direction, phase time.Duration) {
	proxy := startProxy(t, broker)
	client, other, name := clientOf(t, proxy.URL()), clientOf(t, broker.URL()), lockName(t)
	notified := make(chan time.Time, 10)
	onLost := leasehold.WithOnLost(func(*leasehold.Lease) { notified <- time.Now() })
	lease := lock(t, client, name, leasehold.WithTTL(shortTTL), onLost)
	rival := startLock(t.Context(), other, name, leasehold.WithTTL(20*time.Second))
	waitQueueLength(t, other, name, 1)
	time.Sleep(phase)
	assert(t, lease.IsValid(), "%v", lease)
	proxy.Drop(direction)
	next := rival.waitGranted(t)
	granted := time.Now()
	select {
	case at := <-notified:
		assert(t, at.Before(granted), "notified %s too late", at.Sub(granted))
	default:
		t.Fatal("not notified before the next grant")
	}
	assert(t, proxy.DroppedBytes() > 0, "no data was dropped")
	assert(t, next.FencingToken() > lease.FencingToken(), "the token did not rise")

	// The network works again and the client reconnects, but its lock stays lost.
	proxy.Drop(testbed.None)
	proxy.CloseConnections()
	lockAndRelease(t, client, name+"-another")
	assert(t, !lease.IsValid() && lease.LostReason() == leasehold.LostExpired && lease.Remaining() == 0, "%v", lease)
	assertErr(t, lease.Release(t.Context()), leasehold.ErrLeaseLost)
	assert(t, next.IsValid() && len(notified) == 0, "the lost lease released the lock, or was notified twice")
	release(t, next)
}

func TestValidityCountsFromTheSendingOfAHeartbeat(t *testing.T) {
	t.Parallel()
	const ttl, delay = 6 * time.Second, 900 * time.Millisecond
	proxy := startProxy(t, sharedBroker(t))
	lease := lock(t, clientOf(t, proxy.URL()), lockName(t), leasehold.WithTTL(ttl))
	proxy.Delay(delay)
	// Waits until only delayed acknowledgements extend the lease.
	time.Sleep(ttl/3 + delay)
	largest := time.Duration(0)
	for until := time.Now().Add(4 * time.Second); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		largest = max(largest, lease.Remaining())
	}
	assert(t, lease.IsValid(), "%v", lease)
	assert(t, largest <= ttl-ttl/10-delay+10*time.Millisecond, "%s, counted from the acknowledgement", largest)
	// A late acknowledgement does not revive a lease that has ended.
	proxy.Drop(testbed.ToBroker)
	waitLost(t, lease)
	proxy.Drop(testbed.None)
	time.Sleep(2 * delay)
	assert(t, !lease.IsValid(), "%v", lease)
}

func TestTheValidityOfALateGrantCountsFromItsRequest(t *testing.T) {
	t.Parallel()
	const ttl, delay = 4 * time.Second, 1500 * time.Millisecond
	proxy := startProxy(t, sharedBroker(t))
	client := clientOf(t, proxy.URL())
	ok(t, client.Connect(t.Context()))
	proxy.Delay(delay)
	lease := lock(t, client, lockName(t), leasehold.WithTTL(ttl))
	assert(t, lease.Remaining() <= ttl-500*time.Millisecond-delay, "%s", lease.Remaining())
	release(t, lease)
}

func TestALateGrantIsDeliveredByAHeartbeat(t *testing.T) {
	t.Parallel()
	const ttl, delay = 2 * time.Second, 1100 * time.Millisecond
	proxy := startProxy(t, sharedBroker(t))
	client := clientOf(t, proxy.URL())
	ok(t, client.Connect(t.Context()))
	proxy.Delay(delay)
	call := startLock(t.Context(), client, lockName(t), leasehold.WithTTL(ttl), leasehold.WithWait(3*time.Second))
	time.Sleep(delay / 2)
	// Messages after the grant are not delayed.
	proxy.Delay(0)
	lease := call.waitGranted(t)
	assert(t, lease.Remaining() >= ttl/2-550*time.Millisecond, "%s", lease.Remaining())
	release(t, lease)
}

func TestAWaiterWithoutLeasesReplacesADeadConnection(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	proxy := startProxy(t, brokers[0])
	client, other := clientOf(t, proxy.URL()+","+brokers[1].URL()), clientOf(t, brokers[1].URL())
	lease := lock(t, other, "a", leasehold.WithTTL(20*time.Second))
	waiter := startLock(t.Context(), client, "a", leasehold.WithTTL(20*time.Second))
	waitQueueLength(t, other, "a", 1)
	proxy.Drop(testbed.Both)
	proxy.RefuseConnections(true)
	// The broker would remove the waiter after 6 s without a heartbeat.
	time.Sleep(7 * time.Second)
	waitQueueLength(t, other, "a", 1)
	release(t, lease)
	release(t, waiter.waitGranted(t))
}
