// The lease streams of the broker, and its looks at locks.

package leaseholdtest

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"leasehold.dev/sdk"
	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

// codeRefused is one that no client repeats a call after.
const codeRefused = int32(codes.Aborted)

type lockService struct {
	pb.UnimplementedLockServiceServer
	broker *Broker
}

type inspectionService struct {
	pb.UnimplementedInspectionServiceServer
	broker *Broker
}

// GetLock shows a lock.
func (s *inspectionService) GetLock(_ context.Context, request *pb.GetLockRequest) (*pb.GetLockResponse, error) {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	locks, lock := &s.broker.locks, nameOf(request)
	waiting := locks.queueLength(func(one lockName) bool { return one == lock })
	holders := locks.holders(lock)
	if len(holders) == 0 && waiting == 0 {
		return nil, status.Error(codes.NotFound, "nobody holds it or waits for it")
	}
	found := &pb.Lock{Holders: holders, QueueLength: int32(waiting), HolderCount: int32(len(holders))}
	for _, holder := range holders {
		found.LastFencingToken = max(found.LastFencingToken, holder.FencingToken)
	}
	return &pb.GetLockResponse{Lock: found}, nil
}

// stream is one of a client. Everything but its sending is done under the broker's lock.
type stream struct {
	broker *Broker
	// out is never waited for: a client reads faster than this is filled.
	out chan *pb.HoldResponse
	// told are who waits until the client has heard of the end of a lease.
	told map[string]chan struct{}
	gone bool
}

// Hold is a lease stream.
func (s *lockService) Hold(connection pb.LockService_HoldServer) error {
	one := &stream{broker: s.broker, out: make(chan *pb.HoldResponse, 10_000), told: map[string]chan struct{}{}}
	// Clients take a stream for open when its headers come.
	if err := connection.SendHeader(nil); err != nil {
		return err
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for response := range one.out {
			// A stream that has ended says so where it is read.
			_ = connection.Send(response)
		}
	}()
	defer func() {
		one.over()
		<-sent
	}()
	for {
		request, err := connection.Recv()
		if err != nil {
			return nil
		}
		if one.hear(request) {
			return nil
		}
	}
}

// over is after the last message. Its leases and waits stay: their client comes back with them on another stream.
func (s *stream) over() {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	s.gone = true
	close(s.out)
	for _, told := range s.told {
		close(told)
	}
}

func (s *stream) send(response *pb.HoldResponse) {
	if !s.gone {
		s.out <- response
	}
}

// hear is a message of the client; whether it was the last one.
func (s *stream) hear(request *pb.HoldRequest) bool {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	switch said := request.GetMessage().(type) {
	case *pb.HoldRequest_Acquire:
		one := said.Acquire.GetRequest()
		s.acquire(said.Acquire.GetCallId(), one.GetWaitTimeout(), ask{
			[]*pb.LockTarget{one.GetTarget()}, one.GetOwner(), one.GetRequestId(), one.GetUnder().GetLeaseId(),
		})
	case *pb.HoldRequest_AcquireAll:
		all := said.AcquireAll.GetRequest()
		s.acquire(said.AcquireAll.GetCallId(), all.GetWaitTimeout(), ask{
			all.GetTargets(), all.GetOwner(), all.GetRequestId(), "",
		})
	case *pb.HoldRequest_Cancel:
		s.cancel(said.Cancel.GetCallId())
	case *pb.HoldRequest_Attach:
		s.attach(said.Attach)
	case *pb.HoldRequest_Heartbeat:
		s.acknowledge(said.Heartbeat.GetSequence())
	case *pb.HoldRequest_Release:
		s.release(said.Release)
	case *pb.HoldRequest_Detach:
		s.detach(said.Detach)
	case *pb.HoldRequest_Close:
		s.close()
		return true
	}
	return false
}

func (s *stream) acquire(callID int64, wait *durationpb.Duration, a ask) {
	locks := &s.broker.locks
	// A repeat finds its lease, or its place in line.
	for _, lease := range locks.leases {
		if lease.requests[a.requestID] {
			lease.stream = s
			s.granted(callID, lease, locks)
			return
		}
	}
	if w := locks.waiting(a.requestID); w != nil {
		w.stream, w.callID = s, callID
		locks.settle()
		return
	}
	if why := locks.never(&a); why != nil {
		s.refused(callID, why)
		return
	}
	w := &waiter{ask: a, stream: s, callID: callID}
	w.timer = time.AfterFunc(wait.AsDuration(), func() {
		s.broker.mu.Lock()
		defer s.broker.mu.Unlock()
		if locks.waiting(a.requestID) == w && wait.AsDuration() > 0 {
			locks.refuse(w, s.busy(w, pb.ErrorReason_ERROR_REASON_WAIT_TIMEOUT))
			locks.settle()
		}
	})
	locks.line = append(locks.line, w)
	if wait.AsDuration() <= 0 && !locks.isNext(w) {
		locks.refuse(w, s.busy(w, pb.ErrorReason_ERROR_REASON_LOCK_HELD))
		return
	}
	locks.settle()
}

// isNext says whether a call that has just joined the line is granted at once.
func (l *locks) isNext(w *waiter) bool {
	for _, one := range l.line {
		for _, target := range w.targets {
			if one != w && one.wants(nameOf(target)) && l.own(nameOf(target), w.under) == nil {
				return false
			}
		}
	}
	return l.fits(&w.ask)
}

func (s *stream) busy(w *waiter, reason pb.ErrorReason) *pb.Refused {
	why := refusal(reason, w.names()+" is held")
	contention := s.broker.locks.contention(&w.ask)
	if detail, err := anypb.New(contention); err == nil {
		why.Details = []*anypb.Any{detail}
	}
	why.RetryAfter = durationpb.New(ttl)
	return why
}

func (s *stream) cancel(callID int64) {
	locks := &s.broker.locks
	for _, w := range locks.line {
		if w.stream == s && w.callID == callID {
			locks.refuse(w, refusal(pb.ErrorReason_ERROR_REASON_CANCELLED, "the wait was given up"))
			locks.settle()
			return
		}
	}
}

func (s *stream) attach(said *pb.AttachLease) {
	lease := s.broker.locks.leases[said.GetLease().GetLeaseId()]
	if lease == nil {
		s.refused(said.GetCallId(), refusal(pb.ErrorReason_ERROR_REASON_LEASE_NOT_FOUND, "no such lease"))
		return
	}
	lease.stream = s
	s.attached(said.GetCallId(), lease.id)
}

func (s *stream) attached(callID int64, leaseID string) {
	attached := &pb.LeaseAttached{CallId: callID, LeaseId: leaseID}
	s.send(&pb.HoldResponse{Message: &pb.HoldResponse_Attached{Attached: attached}})
}

func (s *stream) acknowledge(sequence int64) {
	ack := &pb.HeartbeatAck{Sequence: sequence}
	for _, lease := range s.broker.locks.leases {
		if lease.stream == s {
			ack.Leases = append(ack.Leases, &pb.LeaseExtended{
				LeaseId: lease.id, Ttl: durationpb.New(ttl), GrantCount: int32(len(lease.locks)),
			})
		}
	}
	s.send(&pb.HoldResponse{Message: &pb.HoldResponse_Ack{Ack: ack}})
}

func (s *stream) release(said *pb.HoldRelease) {
	locks := &s.broker.locks
	lease := locks.leases[said.GetLeaseId()]
	if lease == nil {
		s.heard(said.GetLeaseId())
		s.refused(said.GetCallId(), refusal(pb.ErrorReason_ERROR_REASON_LEASE_NOT_FOUND, "no such lease"))
		return
	}
	released := &pb.Released{CallId: said.GetCallId()}
	if said.GetLock() == nil {
		locks.end(lease)
	} else {
		released.HoldCount = locks.release(lease, nameOf(said.GetLock()), said.GetRequestId())
	}
	s.send(&pb.HoldResponse{Message: &pb.HoldResponse_Released{Released: released}})
	locks.settle()
}

// heard: the client knows that a lease is over.
func (s *stream) heard(leaseID string) {
	if told := s.told[leaseID]; told != nil {
		delete(s.told, leaseID)
		close(told)
	}
}

func (s *stream) detach(said *pb.DetachLease) {
	s.heard(said.GetLeaseId())
	s.send(&pb.HoldResponse{Message: &pb.HoldResponse_Done{Done: &pb.Done{CallId: said.GetCallId()}}})
}

// close gives back everything of the stream.
func (s *stream) close() {
	locks := &s.broker.locks
	for _, lease := range locks.leases {
		if lease.stream == s {
			locks.end(lease)
		}
	}
	for _, w := range append([]*waiter(nil), locks.line...) {
		if w.stream == s {
			locks.leave(w)
		}
	}
	locks.settle()
}

// end tells that a lease is over; what it returns is closed when the client has heard of it. It has when it answers
// to what it is told next: that a lease which it does not have any more is attached.
func (s *stream) end(leaseID string, reason pb.LeaseEndReason, message string) <-chan struct{} {
	told := make(chan struct{})
	if s.gone {
		close(told)
		return told
	}
	s.told[leaseID] = told
	ended := &pb.LeaseEnded{LeaseId: leaseID, Reason: reason, Message: message}
	s.send(&pb.HoldResponse{Message: &pb.HoldResponse_Ended{Ended: ended}})
	s.attached(0, leaseID)
	return told
}

func (s *stream) granted(callID int64, lease *lease, locks *locks) {
	granted := &pb.Granted{CallId: callID, Lease: &pb.Lease{
		LeaseId: lease.id, LeaseToken: lease.secret, Grants: locks.grants(lease), Ttl: durationpb.New(ttl),
	}}
	s.send(&pb.HoldResponse{Message: &pb.HoldResponse_Granted{Granted: granted}})
}

func (s *stream) refused(callID int64, why *pb.Refused) {
	why.CallId = callID
	s.send(&pb.HoldResponse{Message: &pb.HoldResponse_Refused{Refused: why}})
}

func refusal(reason pb.ErrorReason, message string) *pb.Refused {
	return &pb.Refused{Reason: reason, Code: codeRefused, Message: message}
}

var reasons = map[error]pb.ErrorReason{
	leasehold.ErrHeld:               pb.ErrorReason_ERROR_REASON_LOCK_HELD,
	leasehold.ErrWaitTimeout:        pb.ErrorReason_ERROR_REASON_WAIT_TIMEOUT,
	leasehold.ErrLeaseLost:          pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED,
	leasehold.ErrLimitMismatch:      pb.ErrorReason_ERROR_REASON_LIMIT_MISMATCH,
	leasehold.ErrUpgradeDenied:      pb.ErrorReason_ERROR_REASON_UPGRADE_DENIED,
	leasehold.ErrInvalid:            pb.ErrorReason_ERROR_REASON_INVALID_FIELD,
	leasehold.ErrQueueFull:          pb.ErrorReason_ERROR_REASON_QUEUE_FULL,
	leasehold.ErrQuotaExceeded:      pb.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED,
	leasehold.ErrStoreFull:          pb.ErrorReason_ERROR_REASON_STORE_FULL,
	leasehold.ErrUnsupportedByStore: pb.ErrorReason_ERROR_REASON_UNSUPPORTED_BY_STORE,
	leasehold.ErrUnauthenticated:    pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED,
	leasehold.ErrPermissionDenied:   pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED,
	leasehold.ErrUnavailable:        pb.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE,
	leasehold.ErrStoreRecovering:    pb.ErrorReason_ERROR_REASON_STORE_RECOVERING,
	leasehold.ErrInternal:           pb.ErrorReason_ERROR_REASON_INTERNAL,
}

func reasonOf(why error) pb.ErrorReason {
	for err, reason := range reasons {
		if errors.Is(why, err) {
			return reason
		}
	}
	return pb.ErrorReason_ERROR_REASON_UNSPECIFIED
}
