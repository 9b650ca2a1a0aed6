// Package leaseholdtest has a broker in memory, for tests of code that takes locks, with a switch to lose a lock.
//
//	broker := leaseholdtest.NewBroker()
//	defer broker.Close()
//	client := broker.Client("test")
//	lease, err := client.Lock(ctx, "orders/42")
//	...
//	broker.Lose("orders/42")
//	if lease.IsValid() { t.Error("it was lost") }
//
// It listens on the loopback, as the servers of net/http/httptest do, and its clients are real ones. Leases do not
// run out here while anybody waits for it, and there is no WithMaxHold, WithLockDelay or WithDisconnectGrace: a lock
// is held until it is given back or lost. Everything else is as with a broker: one line for each lock in strict
// order, fencing tokens that rise, shared locks, permits, several locks at once and re-entry.
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

// toldLimit is how long Lose waits for clients to hear of it.
const toldLimit = 5 * time.Second

// Broker is a broker in memory whose locks are all free at first.
type Broker struct {
	url    string
	server *grpc.Server

	mu      sync.Mutex
	locks   locks
	clients []*leasehold.Client
}

// NewBroker starts one. It panics if it cannot listen on the loopback. Close it in the end.
func NewBroker() *Broker {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic("leaseholdtest: " + err.Error())
	}
	b := &Broker{url: "http://" + listener.Addr().String(), server: grpc.NewServer(), locks: newLocks()}
	pb.RegisterLockServiceServer(b.server, &lockService{broker: b})
	pb.RegisterInspectionServiceServer(b.server, &inspectionService{broker: b})
	healthpb.RegisterHealthServer(b.server, health.NewServer())
	// It ends with Stop.
	go func() { _ = b.server.Serve(listener) }()
	return b
}

// URL is its endpoint, for clients that the tested code makes itself.
func (b *Broker) URL() string { return b.url }

// Client is a client of it, which is closed with the broker.
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

// Close closes its clients and ends it.
func (b *Broker) Close() {
	b.mu.Lock()
	clients := b.clients
	b.mu.Unlock()
	for _, client := range clients {
		// What a test did not give back is of no interest any more.
		_ = client.Close()
	}
	b.server.Stop()
}

// Lose takes the lock of this name, in whatever namespace, away from everybody who holds it, as a store does that has
// lost its data; how many leases are over with all their locks. Their clients know when it returns. The next in line
// gets the lock at once.
func (b *Broker) Lose(name string) int {
	return b.end(name, pb.LeaseEndReason_LEASE_END_REASON_STORE_LOST, "")
}

// Revoke does the same as an operator does, who says why.
func (b *Broker) Revoke(name, why string) int {
	return b.end(name, pb.LeaseEndReason_LEASE_END_REASON_REVOKED, why)
}

func (b *Broker) end(name string, reason pb.LeaseEndReason, message string) int {
	b.mu.Lock()
	gone := b.locks.holding(name)
	var told []<-chan struct{}
	for _, lease := range gone {
		if lease.stream != nil {
			told = append(told, lease.stream.end(lease.id, reason, message))
		}
		b.locks.end(lease)
	}
	b.locks.settle()
	b.mu.Unlock()
	limit := time.After(toldLimit)
	for _, one := range told {
		select {
		case <-one:
		case <-limit:
		}
	}
	return len(gone)
}

// Refuse answers the next call for the lock of this name with an error, as a broker in trouble does: one of the
// errors of package leasehold, or a [*leasehold.Error] with more about it.
func (b *Broker) Refuse(name string, why error) {
	refused := &pb.Refused{Reason: reasonOf(why), Code: codeRefused, Message: why.Error()}
	var said *leasehold.Error
	if errors.As(why, &said) {
		refused.Message, refused.RetryAfter = said.Message, durationpb.New(said.RetryAfter)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.locks.refusals[name] = append(b.locks.refusals[name], refused)
}

// HolderCount is how many hold the lock of this name.
func (b *Broker) HolderCount(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.locks.holding(name))
}

// QueueLength is how many calls wait for the lock of this name.
func (b *Broker) QueueLength(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.locks.queueLength(func(lock lockName) bool { return lock.name == name })
}
