// The parameters of an acquire, which are equal in all attempts, and its channels to the caller.

package leasehold

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

// QueuePosition is a position in the queue of a lock. It is a hint that the broker sends at most once a second.
type QueuePosition struct {
	// Position is the position in the queue, counted from 1. It is 0 if the call is not in the queue yet, because the
	// store recovers: the client repeats the call until the end of its wait.
	Position int
	// QueueLength is the number of all waiters.
	QueueLength int
	// Holders are at most 5 holders of the lock.
	Holders []Holder
	// Closure is the closure of the lock; nil if the lock is not closed.
	Closure *Closure
	// Recovery is the recovery of the store, while it grants nothing new; otherwise nil.
	Recovery *StoreRecovery
}

// StoreRecovery is a period after a loss of data in which the store grants nothing new.
type StoreRecovery struct {
	// Cause is the cause for people, as the rest of a sentence that begins with the name of the store: "was restarted".
	Cause string
	// Since is the beginning of the period by the clock of the store; zero if it is unknown.
	Since time.Time
	// Remaining is the time until the end of the period.
	Remaining time.Duration
}

// acquireParams is the request of an acquire.
type acquireParams struct {
	targets         []*pb.LockTarget
	owner           *pb.Owner
	requestID       string
	ttl             *time.Duration
	maxHold         *time.Duration
	lockDelay       *time.Duration
	disconnectGrace *time.Duration
	atLeast         *time.Duration
	// traceparent is the caller's trace context; empty without one.
	traceparent string
}

// locks returns the locks that the call requests.
func (p *acquireParams) locks() map[lockName]bool {
	locks := map[lockName]bool{}
	for _, target := range p.targets {
		locks[lockOf(target.GetNamespace(), target.GetName())] = true
	}
	return locks
}

// acquireCommand is an acquire that a caller has passed to a session.
type acquireCommand struct {
	params acquireParams
	wait   time.Duration
	under  *leaseHandle
	// result and positions have capacity 1, so that the session never blocks. positions contains only the newest position.
	result    chan acquireResult
	positions chan QueuePosition
}

// acquireResult is the result of an acquire: a handle or an error.
type acquireResult struct {
	handle *leaseHandle
	err    error
}

// notifyPosition sends the queue position to the caller, and replaces one that the caller has not received yet.
func (c *acquireCommand) notifyPosition(position QueuePosition) {
	select {
	case <-c.positions:
	default:
	}
	c.positions <- position
}

// message builds the protocol message with the remaining time to wait, and the lease to add the lock to.
func (p *acquireParams) message(attempt attempt, wait time.Duration, under *pb.Lease) *pb.HoldRequest {
	if len(p.targets) == 1 {
		acquire := &pb.HoldAcquire{
			CallId: attempt.callID, AttachNumber: attempt.attachNumber, Traceparent: p.traceparent,
			Request: &pb.AcquireRequest{
				Target: p.targets[0], Owner: p.owner, RequestId: p.requestID, Under: under,
				Ttl: optionalDuration(p.ttl), WaitTimeout: durationpb.New(wait), MaxHold: optionalDuration(p.maxHold),
				LockDelay: optionalDuration(p.lockDelay), DisconnectGrace: optionalDuration(p.disconnectGrace),
				AtLeast: optionalDuration(p.atLeast),
			},
		}
		return &pb.HoldRequest{Message: &pb.HoldRequest_Acquire{Acquire: acquire}}
	}
	all := &pb.HoldAcquireAll{
		CallId: attempt.callID, AttachNumber: attempt.attachNumber, Traceparent: p.traceparent,
		Request: &pb.AcquireAllRequest{
			Targets: p.targets, Owner: p.owner, RequestId: p.requestID,
			Ttl: optionalDuration(p.ttl), WaitTimeout: durationpb.New(wait), MaxHold: optionalDuration(p.maxHold),
			LockDelay: optionalDuration(p.lockDelay), DisconnectGrace: optionalDuration(p.disconnectGrace),
			AtLeast: optionalDuration(p.atLeast),
		},
	}
	return &pb.HoldRequest{Message: &pb.HoldRequest_AcquireAll{AcquireAll: all}}
}

// attempt identifies one attempt of a call.
type attempt struct {
	callID       int64
	attachNumber int32
}

func optionalDuration(duration *time.Duration) *durationpb.Duration {
	if duration == nil {
		return nil
	}
	return durationpb.New(*duration)
}
