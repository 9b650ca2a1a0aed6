// Fixtures of the tests: real brokers, the broker in memory, and clients.

package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"leasehold.dev/sdk"
	"leasehold.dev/sdk/internal/testbed"
	"leasehold.dev/sdk/leaseholdtest"
)

const (
	// operationTimeout is the time limit, on a busy machine, for operations that do not wait for a deadline.
	operationTimeout = 5 * time.Second
	// shortTTL is the TTL of locks that a test loses.
	shortTTL = 2 * time.Second
	// expiry is the time after which the store expires a lease with shortTTL.
	expiry = shortTTL*12/10 + 250*time.Millisecond
	// lossDelayMax is the longest delay of the notification of a loss, if the test does not check the lease.
	lossDelayMax = 250 * time.Millisecond
)

// shared is a broker on the embedded store that no test stops or disturbs. Locks are named after their test.
var shared struct {
	once   sync.Once
	broker *testbed.Broker
	err    error
}

func TestMain(m *testing.M) {
	if run, ok := programs[os.Getenv("LEASEHOLD_TEST_PROGRAM")]; ok {
		if err := run(os.Getenv("LEASEHOLD_TEST_ENDPOINT")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if shared.broker != nil {
		shared.broker.Kill()
	}
	os.Exit(code)
}

func sharedBroker(t *testing.T) *testbed.Broker {
	t.Helper()
	shared.once.Do(func() { shared.broker, shared.err = testbed.StartBroker("") })
	ok(t, shared.err)
	return shared.broker
}

// onBothBrokers runs a test with a real broker and with the broker in memory.
func onBothBrokers(t *testing.T, test func(t *testing.T, url string)) {
	t.Parallel()
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		test(t, sharedBroker(t).URL())
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		broker := leaseholdtest.NewBroker()
		t.Cleanup(broker.Close)
		test(t, broker.URL())
	})
}

// lockName returns the name of a lock that no other test uses.
func lockName(t *testing.T) string { return strings.ReplaceAll(t.Name(), "/", "-") }

func startBroker(t *testing.T, store string) *testbed.Broker {
	t.Helper()
	broker, err := testbed.StartBroker(store)
	ok(t, err)
	t.Cleanup(func() { broker.Kill() })
	return broker
}

func startRedis(t *testing.T) *testbed.Redis {
	t.Helper()
	redis, err := testbed.StartRedis()
	ok(t, err)
	t.Cleanup(redis.Kill)
	return redis
}

// twoBrokers starts two brokers on one Redis server.
func twoBrokers(t *testing.T) [2]*testbed.Broker {
	t.Helper()
	redis := startRedis(t)
	return [2]*testbed.Broker{startBroker(t, redis.URL()), startBroker(t, redis.URL())}
}

func startProxy(t *testing.T, broker *testbed.Broker) *testbed.Proxy {
	t.Helper()
	return startProxyTo(t, broker.Addr)
}

func startProxyTo(t *testing.T, addr string) *testbed.Proxy {
	t.Helper()
	proxy, err := testbed.StartProxy(addr)
	ok(t, err)
	t.Cleanup(proxy.Stop)
	return proxy
}

func clientOf(t *testing.T, urls string, options ...leasehold.ClientOption) *leasehold.Client {
	t.Helper()
	client, err := leasehold.New(urls, options...)
	ok(t, err)
	t.Cleanup(func() {
		// The test may have stopped the broker, so the error is ignored.
		_ = client.Close()
	})
	return client
}

func clientWithOwner(t *testing.T, urls, owner string) *leasehold.Client {
	t.Helper()
	return clientOf(t, urls, leasehold.WithOwner(owner))
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// assert fails the test unless the condition is true.
func assert(t *testing.T, condition bool, format string, args ...any) {
	t.Helper()
	if !condition {
		t.Fatalf(format, args...)
	}
}

func assertErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%v instead of %v", err, want)
	}
}

func lock(t *testing.T, client *leasehold.Client, name string, options ...leasehold.Option) *leasehold.Lease {
	t.Helper()
	lease, err := client.Lock(t.Context(), name, options...)
	ok(t, err)
	return lease
}

func release(t *testing.T, leases ...*leasehold.Lease) {
	t.Helper()
	for _, lease := range leases {
		ok(t, lease.Release(t.Context()))
	}
}

// lockAndRelease acquires a lock within operationTimeout, releases it, and returns its fencing token.
func lockAndRelease(t *testing.T, client *leasehold.Client, name string) int64 {
	t.Helper()
	lease := lock(t, client, name, leasehold.WithWait(operationTimeout))
	release(t, lease)
	return lease.FencingToken()
}

// isHeld returns true if another caller holds the lock.
func isHeld(t *testing.T, client *leasehold.Client, name string, options ...leasehold.Option) bool {
	t.Helper()
	lease, err := client.TryLock(t.Context(), name, options...)
	if err == nil {
		release(t, lease)
		return false
	}
	assertErr(t, err, leasehold.ErrHeld)
	return true
}

// lockCall is an acquire that runs in a goroutine.
type lockCall struct {
	lease *leasehold.Lease
	err   error
	done  chan struct{}
}

func startLock(ctx context.Context, client *leasehold.Client, name string, options ...leasehold.Option) *lockCall {
	c := &lockCall{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.lease, c.err = client.Lock(ctx, name, options...)
	}()
	return c
}

// wait waits for the end of the call and returns its result.
func (c *lockCall) wait(t *testing.T) (*leasehold.Lease, error) {
	t.Helper()
	waitFor(t, c.done)
	return c.lease, c.err
}

// waitGranted waits for the lease of the call.
func (c *lockCall) waitGranted(t *testing.T) *leasehold.Lease {
	t.Helper()
	lease, err := c.wait(t)
	ok(t, err)
	return lease
}

func (c *lockCall) isPending() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

func waitFor(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(2 * operationTimeout):
		t.Fatal("timed out")
	}
}

// waitQueueLength waits until this number of waiters is in the queue of a lock.
func waitQueueLength(t *testing.T, observer *leasehold.Client, name string, count int) {
	t.Helper()
	for until := time.Now().Add(operationTimeout); ; {
		state, err := observer.Get(t.Context(), name)
		ok(t, err)
		if state.QueueLength == count {
			return
		}
		assert(t, time.Now().Before(until), "%d waiters instead of %d", state.QueueLength, count)
	}
}

// waitLost waits until a lease is lost, and returns the reason.
func waitLost(t *testing.T, lease *leasehold.Lease) leasehold.LostReason {
	t.Helper()
	waitFor(t, lease.Context().Done())
	return lease.LostReason()
}
