// The send queue of a stream. Adding a message never waits for the network.

package leasehold

import (
	"context"
	"sync"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

type outbox struct {
	mu       sync.Mutex
	messages []*pb.HoldRequest
	isClosed bool
	// ready has capacity 1. It receives a value when a message was added or the queue was closed.
	ready chan struct{}
}

func newOutbox() *outbox {
	return &outbox{ready: make(chan struct{}, 1)}
}

func (o *outbox) put(message *pb.HoldRequest) {
	o.mu.Lock()
	o.messages = append(o.messages, message)
	o.mu.Unlock()
	o.wake()
}

// close ends the stream after the queued messages were sent.
func (o *outbox) close() {
	o.mu.Lock()
	o.isClosed = true
	o.mu.Unlock()
	o.wake()
}

func (o *outbox) wake() {
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// takeAll waits for messages and returns all queued messages. It returns none once the queue is closed and empty, or
// ctx has ended.
func (o *outbox) takeAll(ctx context.Context) []*pb.HoldRequest {
	for {
		o.mu.Lock()
		messages, isClosed := o.messages, o.isClosed
		o.messages = nil
		o.mu.Unlock()
		if len(messages) > 0 || isClosed {
			return messages
		}
		select {
		case <-o.ready:
		case <-ctx.Done():
			return nil
		}
	}
}
