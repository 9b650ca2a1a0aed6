// The lease streams of the broker, its inspection of locks, and the limits of semaphores.

package leaseholdtest

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"leasehold.dev/sdk"
	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

// codeNotRetryable is a status code after which clients do not repeat a call.
const codeNotRetryable = int32(codes.Aborted)

const unknownLease = "unknown lease: it has ended or never existed"

type lockService struct {
	pb.UnimplementedLockServiceServer
	broker *Broker
}

type inspectionService struct {
	pb.UnimplementedInspectionServiceServer
	broker *Broker
}

// GetLock returns the state of a lock.
func (s *inspectionService) GetLock(_ context.Context, request *pb.GetLockRequest) (*pb.GetLockResponse, error) {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	locks, lock := &s.broker.locks, nameOf(request)
	queueLength := locks.queueLength(func(other lockName) bool { return other == lock })
	holders := locks.holders(lock)
	_, isLimitSet := locks.setLimits[lock]
	if len(holders) == 0 && queueLength == 0 && !isLimitSet {
		return nil, status.Error(codes.NotFound, "the lock has no holder, no waiter and no set limit")
	}
	state := &pb.Lock{Holders: holders, QueueLength: int32(queueLength), HolderCount: int32(len(holders))}
	if limit := locks.limitInUse(lock); limit != 0 && limit != exclusiveWeight {
		state.PermitUsage = &pb.PermitUsage{Limit: limit, Used: locks.weightInUse(lock), IsLimitSet: isLimitSet}
	}
	for _, holder := range holders {
		state.LastFencingToken = max(state.LastFencingToken, holder.FencingToken)
	}
	return &pb.GetLockResponse{Lock: state}, nil
}

// SetLockLimit sets or removes the limit of a semaphore.
func (service *lockService) SetLockLimit(
	_ context.Context, request *pb.SetLockLimitRequest,
) (*pb.SetLockLimitResponse, error) {
	service.broker.mu.Lock()
	defer service.broker.mu.Unlock()
	locks, lock := &service.broker.locks, nameOf(request.GetLock())
	if request.GetLimit() == 0 {
		return &pb.SetLockLimitResponse{PreviousLimit: locks.removeLimit(lock)}, nil
	}
	previous, ok := locks.setLimit(lock, request.GetLimit())
	if !ok {
		mismatch, err := status.New(codes.FailedPrecondition, limitMismatchMessage).WithDetails(
			&errdetails.ErrorInfo{Reason: "LIMIT_MISMATCH", Domain: "leasehold.dev"})
		if err != nil {
			return nil, err
		}
		return nil, mismatch.Err()
	}
	return &pb.SetLockLimitResponse{PreviousLimit: previous}, nil
}

// stream is a lease stream of a client. The broker's mutex guards everything except sending.
type stream struct {
	broker *Broker
	// out is large enough that sending to it does not block: a client reads faster than the channel fills.
	out chan *pb.HoldResponse
	// endNotifications is the channels of callers that wait until the client has received the end of a lease, by lease id.
	endNotifications map[string]chan struct{}
	isClosed         bool
}

// Hold serves a lease stream.
func (service *lockService) Hold(grpcStream pb.LockService_HoldServer) error {
	s := &stream{
		broker: service.broker, out: make(chan *pb.HoldResponse, 10_000), endNotifications: map[string]chan struct{}{},
	}
	// Clients consider a stream open when its headers arrive.
	if err := grpcStream.SendHeader(nil); err != nil {
		return err
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for response := range s.out {
			// The receiving side detects the end of the stream.
			_ = grpcStream.Send(response)
		}
	}()
	defer func() {
		s.finish()
		<-sent
	}()
	for {
		request, err := grpcStream.Recv()
		if err != nil {
			return nil
		}
		if s.onMessage(request) {
			return nil
		}
	}
}

// finish closes the stream after its last message. Its leases and waiters stay until the client attaches them again.
func (s *stream) finish() {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	s.isClosed = true
	close(s.out)
	for _, notified := range s.endNotifications {
		close(notified)
	}
}

func (s *stream) send(response *pb.HoldResponse) {
	if !s.isClosed {
		s.out <- response
	}
}

// onMessage handles a message of the client. It returns true if the message was the last one.
func (s *stream) onMessage(request *pb.HoldRequest) bool {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	switch message := request.GetMessage().(type) {
	case *pb.HoldRequest_Acquire:
		acquire := message.Acquire.GetRequest()
		s.acquire(message.Acquire.GetCallId(), acquire.GetWaitTimeout(), acquireRequest{
			[]*pb.LockTarget{acquire.GetTarget()}, acquire.GetOwner(), acquire.GetRequestId(), acquire.GetUnder().GetLeaseId(),
		})
	case *pb.HoldRequest_AcquireAll:
		acquire := message.AcquireAll.GetRequest()
		s.acquire(message.AcquireAll.GetCallId(), acquire.GetWaitTimeout(), acquireRequest{
			acquire.GetTargets(), acquire.GetOwner(), acquire.GetRequestId(), "",
		})
	case *pb.HoldRequest_Cancel:
		s.cancel(message.Cancel.GetCallId())
	case *pb.HoldRequest_Attach:
		s.attach(message.Attach)
	case *pb.HoldRequest_Heartbeat:
		s.sendHeartbeatAck(message.Heartbeat.GetSequence())
	case *pb.HoldRequest_Release:
		s.release(message.Release)
	case *pb.HoldRequest_Detach:
		s.detach(message.Detach)
	case *pb.HoldRequest_Close:
		s.close()
		return true
	}
	return false
}

func (s *stream) acquire(callID int64, wait *durationpb.Duration, request acquireRequest) {
	locks := &s.broker.locks
	// A repeated acquire returns its lease, or keeps its queue position.
	for _, lease := range locks.leases {
		if lease.requests[request.requestID] {
			lease.stream = s
			s.sendGranted(callID, lease, locks)
			return
		}
	}
	if w := locks.findWaiter(request.requestID); w != nil {
		w.stream, w.callID = s, callID
		locks.grantWaiters()
		return
	}
	if rejection := locks.findRejection(&request); rejection != nil {
		s.sendRefused(callID, rejection)
		return
	}
	w := &waiter{acquireRequest: request, stream: s, callID: callID}
	w.timer = time.AfterFunc(wait.AsDuration(), func() {
		s.broker.mu.Lock()
		defer s.broker.mu.Unlock()
		if locks.findWaiter(request.requestID) == w && wait.AsDuration() > 0 {
			locks.reject(w, s.heldRejection(w, pb.ErrorReason_ERROR_REASON_WAIT_TIMEOUT))
			locks.grantWaiters()
		}
	})
	locks.queue = append(locks.queue, w)
	if wait.AsDuration() <= 0 && !locks.isGrantedAtOnce(w) {
		locks.reject(w, s.heldRejection(w, pb.ErrorReason_ERROR_REASON_LOCK_HELD))
		return
	}
	locks.grantWaiters()
}

// isGrantedAtOnce returns true if an acquire that was just added to the queue is granted at once.
func (l *locks) isGrantedAtOnce(w *waiter) bool {
	for _, ahead := range l.queue {
		for _, target := range w.targets {
			if ahead != w && ahead.includes(nameOf(target)) && l.holdOf(nameOf(target), w.under) == nil {
				return false
			}
		}
	}
	return l.hasRoom(&w.acquireRequest)
}

func (s *stream) heldRejection(w *waiter, reason pb.ErrorReason) *pb.Refused {
	refused := newRefused(reason, w.describeLocks()+" is held")
	contention := s.broker.locks.contention(&w.acquireRequest)
	if detail, err := anypb.New(contention); err == nil {
		refused.Details = []*anypb.Any{detail}
	}
	refused.RetryAfter = durationpb.New(ttl)
	return refused
}

func (s *stream) cancel(callID int64) {
	locks := &s.broker.locks
	for _, w := range locks.queue {
		if w.stream == s && w.callID == callID {
			locks.reject(w, newRefused(pb.ErrorReason_ERROR_REASON_CANCELLED, "the wait was cancelled"))
			locks.grantWaiters()
			return
		}
	}
}

func (s *stream) attach(attach *pb.AttachLease) {
	lease := s.broker.locks.leases[attach.GetLease().GetLeaseId()]
	if lease == nil {
		s.sendRefused(attach.GetCallId(), newRefused(pb.ErrorReason_ERROR_REASON_LEASE_NOT_FOUND, unknownLease))
		return
	}
	lease.stream = s
	s.sendAttached(attach.GetCallId(), lease.id)
}

func (s *stream) sendAttached(callID int64, leaseID string) {
	attached := &pb.LeaseAttached{CallId: callID, LeaseId: leaseID}
	s.send(&pb.HoldResponse{Message: &pb.HoldResponse_Attached{Attached: attached}})
}

func (s *stream) sendHeartbeatAck(sequence int64) {
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

func (s *stream) release(release *pb.HoldRelease) {
	locks := &s.broker.locks
	lease := locks.leases[release.GetLeaseId()]
	if lease == nil {
		s.confirmEnd(release.GetLeaseId())
		s.sendRefused(release.GetCallId(), newRefused(pb.ErrorReason_ERROR_REASON_LEASE_NOT_FOUND, unknownLease))
		return
	}
	released := &pb.Released{CallId: release.GetCallId()}
	if release.GetLock() == nil {
		locks.endLease(lease)
	} else {
		released.HoldCount = locks.release(lease, nameOf(release.GetLock()), release.GetRequestId())
	}
	s.send(&pb.HoldResponse{Message: &pb.HoldResponse_Released{Released: released}})
	locks.grantWaiters()
}

// confirmEnd notifies the caller that waits until the client has received the end of a lease.
func (s *stream) confirmEnd(leaseID string) {
	if notified := s.endNotifications[leaseID]; notified != nil {
		delete(s.endNotifications, leaseID)
		close(notified)
	}
}

func (s *stream) detach(detach *pb.DetachLease) {
	s.confirmEnd(detach.GetLeaseId())
	s.send(&pb.HoldResponse{Message: &pb.HoldResponse_Done{Done: &pb.Done{CallId: detach.GetCallId()}}})
}

// close releases all leases of the stream and removes its waiters.
func (s *stream) close() {
	locks := &s.broker.locks
	for _, lease := range locks.leases {
		if lease.stream == s {
			locks.endLease(lease)
		}
	}
	for _, w := range append([]*waiter(nil), locks.queue...) {
		if w.stream == s {
			locks.dequeue(w)
		}
	}
	locks.grantWaiters()
}

// sendEnded sends the end of a lease. The returned channel is closed when the client has received it. To find out, the
// broker then sends an attachment of the ended lease, which the client no longer has and therefore detaches.
func (s *stream) sendEnded(leaseID string, reason pb.LeaseEndReason, message string) <-chan struct{} {
	notified := make(chan struct{})
	if s.isClosed {
		close(notified)
		return notified
	}
	s.endNotifications[leaseID] = notified
	ended := &pb.LeaseEnded{LeaseId: leaseID, Reason: reason, Message: message}
	s.send(&pb.HoldResponse{Message: &pb.HoldResponse_Ended{Ended: ended}})
	s.sendAttached(0, leaseID)
	return notified
}

func (s *stream) sendGranted(callID int64, lease *lease, locks *locks) {
	granted := &pb.Granted{CallId: callID, Lease: &pb.Lease{
		LeaseId: lease.id, LeaseToken: lease.secret, Grants: locks.grants(lease), Ttl: durationpb.New(ttl),
	}}
	s.send(&pb.HoldResponse{Message: &pb.HoldResponse_Granted{Granted: granted}})
}

func (s *stream) sendRefused(callID int64, refused *pb.Refused) {
	refused.CallId = callID
	s.send(&pb.HoldResponse{Message: &pb.HoldResponse_Refused{Refused: refused}})
}

func newRefused(reason pb.ErrorReason, message string) *pb.Refused {
	return &pb.Refused{Reason: reason, Code: codeNotRetryable, Message: message}
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

func reasonOf(err error) pb.ErrorReason {
	for known, reason := range reasons {
		if errors.Is(err, known) {
			return reason
		}
	}
	return pb.ErrorReason_ERROR_REASON_UNSPECIFIED
}
