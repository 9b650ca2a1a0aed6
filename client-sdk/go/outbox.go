// What waits to be sent on a stream: whoever adds to it never waits for the network.

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
	// more has room for one.
	more chan struct{}
}

func newOutbox() *outbox {
	return &outbox{more: make(chan struct{}, 1)}
}

func (o *outbox) put(message *pb.HoldRequest) {
	o.mu.Lock()
	o.messages = append(o.messages, message)
	o.mu.Unlock()
	o.wake()
}

// close has the stream ended after what is in here.
func (o *outbox) close() {
	o.mu.Lock()
	o.isClosed = true
	o.mu.Unlock()
	o.wake()
}

func (o *outbox) wake() {
	select {
	case o.more <- struct{}{}:
	default:
	}
}

// take waits for messages. None: nothing comes any more.
func (o *outbox) take(ctx context.Context) []*pb.HoldRequest {
	for {
		o.mu.Lock()
		messages, isClosed := o.messages, o.isClosed
		o.messages = nil
		o.mu.Unlock()
		if len(messages) > 0 || isClosed {
			return messages
		}
		select {
		case <-o.more:
		case <-ctx.Done():
			return nil
		}
	}
}
