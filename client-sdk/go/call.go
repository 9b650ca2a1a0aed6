// What one acquire asks for; the same however often it is sent.

package leasehold

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

// Place is a place in line. A hint: it was true when the broker looked, at most once a second.
type Place struct {
	// Position is 1 for who is next.
	Position int
	// QueueLength is how many wait in all.
	QueueLength int
	// Holders are some who hold the lock; at most 5.
	Holders []Holder
}

// call is what is asked for.
type call struct {
	targets         []*pb.LockTarget
	owner           *pb.Owner
	requestID       string
	ttl             *time.Duration
	maxHold         *time.Duration
	lockDelay       *time.Duration
	disconnectGrace *time.Duration
	// traceparent is the caller's trace context, if it has one.
	traceparent string
}

// locks are those that it asks for.
func (c *call) locks() map[lockName]bool {
	locks := map[lockName]bool{}
	for _, target := range c.targets {
		locks[lockOf(target.GetNamespace(), target.GetName())] = true
	}
	return locks
}

// ask is one acquire on its way, between its caller and the keeper.
type ask struct {
	call  call
	wait  time.Duration
	under *grip
	// answer and places have room for one, so that the keeper never waits; places has the newest.
	answer chan answer
	places chan Place
}

// answer is what an acquire has got: a grip, or why there is none.
type answer struct {
	grip *grip
	err  error
}

// tell has the newest place told.
func (a *ask) tell(place Place) {
	select {
	case <-a.places:
	default:
	}
	a.places <- place
}

// message is the call with so much time left to wait, under this lease.
func (c *call) message(ids sending, wait time.Duration, under *pb.Lease) *pb.HoldRequest {
	if len(c.targets) == 1 {
		acquire := &pb.HoldAcquire{
			CallId: ids.callID, AttachNumber: ids.attachNumber, Traceparent: c.traceparent,
			Request: &pb.AcquireRequest{
				Target: c.targets[0], Owner: c.owner, RequestId: c.requestID, Under: under,
				Ttl: optional(c.ttl), WaitTimeout: durationpb.New(wait), MaxHold: optional(c.maxHold),
				LockDelay: optional(c.lockDelay), DisconnectGrace: optional(c.disconnectGrace),
			},
		}
		return &pb.HoldRequest{Message: &pb.HoldRequest_Acquire{Acquire: acquire}}
	}
	all := &pb.HoldAcquireAll{
		CallId: ids.callID, AttachNumber: ids.attachNumber, Traceparent: c.traceparent,
		Request: &pb.AcquireAllRequest{
			Targets: c.targets, Owner: c.owner, RequestId: c.requestID,
			Ttl: optional(c.ttl), WaitTimeout: durationpb.New(wait), MaxHold: optional(c.maxHold),
			LockDelay: optional(c.lockDelay), DisconnectGrace: optional(c.disconnectGrace),
		},
	}
	return &pb.HoldRequest{Message: &pb.HoldRequest_AcquireAll{AcquireAll: all}}
}

// sending is what tells one sending of a call from the others.
type sending struct {
	callID       int64
	attachNumber int32
}

func optional(length *time.Duration) *durationpb.Duration {
	if length == nil {
		return nil
	}
	return durationpb.New(*length)
}
