// Package leaseholdtest provides a broker in memory, for tests of code that uses locks. Tests can end leases.
//
//	broker := leaseholdtest.NewBroker()
//	defer broker.Close()
//	client := broker.Client("test")
//	lease, err := client.Lock(ctx, "orders/42")
//	...
//	broker.Lose("orders/42")
//	if lease.IsValid() { t.Error("it was lost") }
//
// The broker listens on the loopback interface, as the servers of net/http/httptest do, and its clients are real ones.
// The broker does not expire leases. WithMaxHold, WithLockDelay, WithAtLeast and WithDisconnectGrace have no effect: a
// lock is held until it is released or lost, and then free at once. Everything else is as with a real broker: one queue
// for each lock in strict order, fencing tokens that rise, shared locks, permits, set limits, several locks at once and
// re-entry.
package leaseholdtest

import (
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"leasehold.dev/sdk"
	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

// notifyTimeout is the longest time for which Lose and Revoke wait until the clients have received the loss.
const notifyTimeout = 5 * time.Second

// Broker is a broker in memory. At the start all its locks are free.
type Broker struct {
	url    string
	server *grpc.Server

	mu      sync.Mutex
	locks   locks
	clients []*leasehold.Client
}

// NewBroker starts a broker. It panics if it cannot listen on the loopback interface. Call [Broker.Close] at the end.
func NewBroker() *Broker {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic("leaseholdtest: " + err.Error())
	}
	b := &Broker{url: "http://" + listener.Addr().String(), server: grpc.NewServer(), locks: newLocks()}
	pb.RegisterLockServiceServer(b.server, &lockService{broker: b})
	pb.RegisterInspectionServiceServer(b.server, &inspectionService{broker: b})
	healthpb.RegisterHealthServer(b.server, health.NewServer())
	// Serve returns after Stop.
	go func() { _ = b.server.Serve(listener) }()
	return b
}

// URL returns the endpoint of the broker, for clients that the tested code creates.
func (b *Broker) URL() string { return b.url }

// Client returns a client of the broker, which is closed with the broker.
func (b *Broker) Client(owner string) *leasehold.Client {
	client, err := leasehold.New(b.url, leasehold.WithOwner(owner))
	if err != nil {
		panic("leaseholdtest: " + err.Error())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clients = append(b.clients, client)
	return client
}

// Close closes the clients of [Broker.Client] and stops the broker.
func (b *Broker) Close() {
	b.mu.Lock()
	clients := b.clients
	b.mu.Unlock()
	for _, client := range clients {
		// Locks that a test did not release do not matter, because the broker stops.
		_ = client.Close()
	}
	b.server.Stop()
}

// Lose ends all leases that hold a lock of this name, in any namespace, as a store that has lost its data does. It
// returns the number of these leases; each loses all its locks. When Lose returns, the clients have received the loss.
// The next waiter is granted the lock at once.
func (b *Broker) Lose(name string) int {
	return b.endLeases(name, pb.LeaseEndReason_LEASE_END_REASON_STORE_LOST, "")
}

// Revoke ends the leases as [Broker.Lose] does, as revoked by an operator with this reason.
func (b *Broker) Revoke(name, reason string) int {
	return b.endLeases(name, pb.LeaseEndReason_LEASE_END_REASON_REVOKED, reason)
}

func (b *Broker) endLeases(name string, reason pb.LeaseEndReason, message string) int {
	b.mu.Lock()
	leases := b.locks.leasesHolding(name)
	var notifications []<-chan struct{}
	for _, lease := range leases {
		if lease.stream != nil {
			notifications = append(notifications, lease.stream.sendEnded(lease.id, reason, message))
		}
		b.locks.endLease(lease)
	}
	b.locks.grantWaiters()
	b.mu.Unlock()
	timeout := time.After(notifyTimeout)
	for _, notified := range notifications {
		select {
		case <-notified:
		case <-timeout:
		}
	}
	return len(leases)
}

// Refuse rejects the next acquire of a lock of this name with err: one of the errors of package leasehold, or a
// [*leasehold.Error] with details.
func (b *Broker) Refuse(name string, err error) {
	refused := &pb.Refused{Reason: reasonOf(err), Code: codeNotRetryable, Message: err.Error()}
	var detailed *leasehold.Error
	if errors.As(err, &detailed) {
		refused.Message, refused.RetryAfter = detailed.Message, durationpb.New(detailed.RetryAfter)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.locks.rejections[name] = append(b.locks.rejections[name], refused)
}

// HolderCount returns the number of leases that hold a lock of this name.
func (b *Broker) HolderCount(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.locks.leasesHolding(name))
}

// QueueLength returns the number of acquires that wait for a lock of this name.
func (b *Broker) QueueLength(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.locks.queueLength(func(lock lockName) bool { return lock.name == name })
}
