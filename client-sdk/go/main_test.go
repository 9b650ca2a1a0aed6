// Where the tests play: real brokers, the broker in memory, and clients of them.

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
	// soon is how late anything may come that needs no time of its own, on a busy machine.
	soon = 5 * time.Second
	// shortTTL is for locks that are to be lost.
	shortTTL = 2 * time.Second
	// expiry is when the store gives such a lock to somebody else.
	expiry = shortTTL*12/10 + 250*time.Millisecond
	// ticks is how late a loss is told that nobody asks for.
	ticks = 250 * time.Millisecond
)

// shared is a broker on the embedded store that nobody harms. Locks have the name of their test.
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

// onBoth runs a test with a real broker and with the one in memory.
func onBoth(t *testing.T, test func(t *testing.T, url string)) {
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

// lockName is a lock that no other test uses.
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

// twoBrokers share a store.
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
		// Whether its broker lives is the test's affair.
		_ = client.Close()
	})
	return client
}

func owned(t *testing.T, urls, owner string) *leasehold.Client {
	t.Helper()
	return clientOf(t, urls, leasehold.WithOwner(owner))
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// is says that it is so.
func is(t *testing.T, what bool, format string, args ...any) {
	t.Helper()
	if !what {
		t.Fatalf(format, args...)
	}
}

func fails(t *testing.T, err, why error) {
	t.Helper()
	if !errors.Is(err, why) {
		t.Fatalf("%v instead of %v", err, why)
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

// takes takes a lock that is free or soon will be, and gives it back; its token.
func takes(t *testing.T, client *leasehold.Client, name string) int64 {
	t.Helper()
	lease := lock(t, client, name, leasehold.WithWait(soon))
	release(t, lease)
	return lease.FencingToken()
}

// isTaken says whether somebody else has it.
func isTaken(t *testing.T, client *leasehold.Client, name string, options ...leasehold.Option) bool {
	t.Helper()
	lease, err := client.TryLock(t.Context(), name, options...)
	if err == nil {
		release(t, lease)
		return false
	}
	fails(t, err, leasehold.ErrHeld)
	return true
}

// call is a call under way.
type call struct {
	lease *leasehold.Lease
	err   error
	done  chan struct{}
}

func asks(ctx context.Context, client *leasehold.Client, name string, options ...leasehold.Option) *call {
	c := &call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.lease, c.err = client.Lock(ctx, name, options...)
	}()
	return c
}

// ended waits for its end; how it ended.
func (c *call) ended(t *testing.T) (*leasehold.Lease, error) {
	t.Helper()
	waits(t, c.done)
	return c.lease, c.err
}

// granted waits for its lease.
func (c *call) granted(t *testing.T) *leasehold.Lease {
	t.Helper()
	lease, err := c.ended(t)
	ok(t, err)
	return lease
}

func (c *call) isOpen() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

func waits(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(2 * soon):
		t.Fatal("it does not happen")
	}
}

// inLine waits until so many wait for a lock.
func inLine(t *testing.T, observer *leasehold.Client, name string, count int) {
	t.Helper()
	for until := time.Now().Add(soon); ; {
		state, err := observer.Get(t.Context(), name)
		ok(t, err)
		if state.QueueLength == count {
			return
		}
		is(t, time.Now().Before(until), "%d wait instead of %d", state.QueueLength, count)
	}
}

// lost waits until a lease is lost; why.
func lost(t *testing.T, lease *leasehold.Lease) leasehold.LostReason {
	t.Helper()
	waits(t, lease.Context().Done())
	return lease.LostReason()
}
