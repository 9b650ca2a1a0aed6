// Pending acquires: sent again on every new stream until they have a response.

package leasehold

import (
	"errors"
	"time"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
	"leasehold.dev/sdk/internal/clock"
)

const (
	// retryWindow is the time after the end of its wait for which an acquire of unknown outcome is repeated.
	retryWindow = 5 * time.Second
	// acquireRetryDelay is the upper bound of the delay before an acquire is repeated after a temporary rejection.
	acquireRetryDelay = 200 * time.Millisecond
	// storeFailoverDelay is the upper bound of the delay before a failover from a broker that cannot reach its store.
	storeFailoverDelay = 2 * time.Second
	// pendingHeartbeatIntervalMax is the longest interval between heartbeats while an acquire is pending.
	pendingHeartbeatIntervalMax = 2 * time.Second
	// ttlMin is the shortest TTL that a broker grants by default.
	ttlMin = time.Second
)

// pendingAcquire is a pending acquire.
type pendingAcquire struct {
	params acquireParams
	under  *leaseHandle
	// command is the caller that waits for the result; nil after the caller has left.
	command *acquireCommand
	isTry   bool
	// deadline is the end of the wait in the queue.
	deadline     time.Duration
	attachNumber int32
	// callID is the call id of the latest attempt; 0 if the acquire was not sent on this stream.
	callID int64
	// lastRejection is the latest temporary rejection.
	lastRejection error
	// reportedRecovery is the recovery that was reported last, for a call that is not in the queue.
	reportedRecovery *StoreRecovery
}

func newPendingAcquire(command *acquireCommand) *pendingAcquire {
	return &pendingAcquire{
		params: command.params, under: command.under, command: command,
		isTry: command.wait <= 0, deadline: clock.Now() + command.wait,
	}
}

// heartbeatInterval returns the longest time between two heartbeats while the acquire is pending.
func (p *pendingAcquire) heartbeatInterval() time.Duration {
	if p.params.ttl == nil {
		return pendingHeartbeatIntervalMax
	}
	return min(max(*p.params.ttl, ttlMin)/3, pendingHeartbeatIntervalMax)
}

// complete sends the result to the caller. If the caller has left, a granted lock is released.
func (p *pendingAcquire) complete(result acquireResult) {
	switch {
	case p.command != nil:
		p.command.result <- result
		p.command = nil
	case result.handle != nil:
		result.handle.release()
	}
}

// rejection returns the error of a rejected acquire.
func (p *pendingAcquire) rejection(refused *pb.Refused) error {
	err := errorFromRefused(refused)
	var rejected *Error
	if errors.Is(err, ErrHeld) && errors.As(err, &rejected) && !p.isTry {
		// A repetition after the end of the wait is sent without waiting. The caller has waited nevertheless, so the
		// error is a timeout.
		rejected.Err = ErrWaitTimeout
	}
	return err
}

// reportRecovery reports to the caller that the call is not in the queue because the store recovers, once for each
// recovery.
func (p *pendingAcquire) reportRecovery(refused *pb.Refused) {
	last, next := p.reportedRecovery, recoveryFromRefused(refused)
	if next == nil || last != nil && last.Cause == next.Cause && last.Since.Equal(next.Since) {
		return
	}
	p.reportedRecovery = next
	p.command.notifyPosition(QueuePosition{Recovery: next})
}

// pendingAcquires is the pending acquires of one session, by request id.
type pendingAcquires struct {
	session *session
	all     map[string]*pendingAcquire
}

// add adds an acquire and sends it.
func (p *pendingAcquires) add(command *acquireCommand) {
	if p.session.isClosed {
		command.result <- acquireResult{err: newError(ErrClosed, "")}
		return
	}
	p.all[command.params.requestID] = newPendingAcquire(command)
	p.session.runtime.startTimer()
	p.send(command.params.requestID)
}

// send sends an acquire if it can be sent now. An acquire under a lease is sent only while that lease is attached to
// this stream.
func (p *pendingAcquires) send(requestID string) {
	connection, acquire := p.session.connection, p.all[requestID]
	if connection == nil || acquire == nil {
		return
	}
	var under *pb.Lease
	if acquire.under == nil {
		acquire.attachNumber++
	} else {
		lease := p.session.leases.all[acquire.under.leaseID]
		if lease == nil || lease.pendingRelease != nil {
			loss := acquire.under.validity.loss()
			if loss == nil {
				loss = &LeaseLostError{Reason: LostReleased}
			}
			delete(p.all, requestID)
			acquire.complete(acquireResult{err: loss})
			return
		}
		if !lease.isAttached {
			return
		}
		under, acquire.attachNumber = lease.proto, lease.attachNumber
	}
	// An acquire whose wait has ended is still sent once, without waiting.
	remaining := max(0, acquire.deadline-clock.Now())
	acquire.callID = connection.nextCallID()
	message := acquire.params.message(attempt{acquire.callID, acquire.attachNumber}, remaining, under)
	connection.sendCall(acquire.callID, callSubject{kind: callAcquire, key: requestID}, message)
}

// sendUnder sends the acquires that waited for the attachment of their lease. If the lease has ended, they fail.
func (p *pendingAcquires) sendUnder(leaseID string) {
	for requestID, acquire := range p.all {
		if acquire.under != nil && acquire.under.leaseID == leaseID && acquire.callID == 0 {
			p.send(requestID)
		}
	}
}

// cancel cancels an acquire whose caller has left. The broker sends a rejection, or a grant that is then released.
func (p *pendingAcquires) cancel(requestID string) {
	acquire := p.all[requestID]
	if acquire == nil {
		p.session.leases.cancelUndelivered(requestID)
		return
	}
	acquire.command = nil
	if p.session.connection == nil || acquire.callID == 0 {
		delete(p.all, requestID)
		return
	}
	cancel := &pb.CancelAcquire{CallId: acquire.callID}
	p.session.connection.out.put(&pb.HoldRequest{Message: &pb.HoldRequest_Cancel{Cancel: cancel}})
}

// onQueued handles a queue position.
func (p *pendingAcquires) onQueued(queued *pb.Queued) {
	call := p.session.connection.pendingCalls[queued.GetCallId()]
	if acquire := p.all[call.subject.key]; call.subject.kind == callAcquire && acquire != nil && acquire.command != nil {
		acquire.reportedRecovery = nil
		acquire.command.notifyPosition(QueuePosition{
			Position:    int(queued.GetPosition()),
			QueueLength: int(queued.GetQueueLength()),
			Holders:     holdersOf(queued.GetHolders()),
			Closure:     closureOf(queued.GetClosure()),
			Recovery:    recoveryOf(queued.GetRecovery()),
		})
	}
}

// onGranted handles the grant of an acquire.
func (p *pendingAcquires) onGranted(granted *pb.Granted) {
	call, _ := p.session.connection.complete(granted.GetCallId())
	acquire := p.all[call.subject.key]
	if call.subject.kind != callAcquire || acquire == nil {
		// An earlier attempt was answered as well; the lease belongs to its handle.
		return
	}
	delete(p.all, call.subject.key)
	if acquire.under != nil {
		p.session.leases.addLocks(granted.GetLease(), acquire)
		return
	}
	// The broker sent the acquire to its store after it had received both messages, so the later one counts. After an
	// idle period the heartbeat is the earlier one.
	sentAt := call.sentAt
	if heartbeatAt, ok := p.session.connection.heartbeatSentAt(granted.GetAsOfSequence()); ok {
		sentAt = max(sentAt, heartbeatAt)
	}
	p.session.leases.adopt(granted.GetLease(), acquire, sentAt)
}

// onRefused repeats a rejected acquire if the rejection is temporary, and fails it otherwise.
func (p *pendingAcquires) onRefused(requestID string, refused *pb.Refused) {
	acquire := p.all[requestID]
	if acquire == nil || acquire.callID != refused.GetCallId() {
		return
	}
	acquire.callID = 0
	if acquire.command == nil || !isRetryable(refused) {
		delete(p.all, requestID)
		acquire.complete(acquireResult{err: acquire.rejection(refused)})
		return
	}
	acquire.lastRejection = errorFromRefused(refused)
	acquire.reportRecovery(refused)
	p.session.retryLater(jittered(acquireRetryDelay), callSubject{kind: callAcquire, key: requestID})
	// A broker that is draining, or cannot reach its store, is replaced by another one.
	switch refused.GetReason() {
	case pb.ErrorReason_ERROR_REASON_DRAINING:
		p.session.failover.start(0)
	case pb.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE:
		if len(p.session.runtime.endpoints.list) > 1 {
			p.session.failover.start(jittered(storeFailoverDelay))
		}
	}
}

// expirePending fails acquires that have no response retryWindow after the end of their wait.
func (p *pendingAcquires) expirePending(now time.Duration) {
	for requestID, acquire := range p.all {
		if acquire.command == nil || now-retryWindow < acquire.deadline {
			continue
		}
		reason := acquire.lastRejection
		switch {
		case reason != nil:
		case p.session.connection == nil:
			reason = newError(ErrUnavailable, p.session.failover.unavailableReason())
		default:
			reason = newError(ErrUnavailable, "the broker does not answer")
		}
		acquire.complete(acquireResult{err: reason})
		p.cancel(requestID)
	}
}

// failAllUnauthenticated fails all pending acquires because no broker accepts the credential, instead of repeating
// them.
func (p *pendingAcquires) failAllUnauthenticated() {
	for _, acquire := range p.all {
		acquire.complete(acquireResult{err: newError(ErrUnauthenticated, p.session.failover.unavailableReason())})
	}
	clear(p.all)
}

// markAllUnsent marks all pending acquires as not sent, because their stream has ended. Acquires whose caller has left
// are removed: the broker cancels attempts that are not repeated.
func (p *pendingAcquires) markAllUnsent() {
	for requestID, acquire := range p.all {
		acquire.callID = 0
		if acquire.command == nil {
			delete(p.all, requestID)
		}
	}
}

// resumeAll sends all pending acquires on a new stream.
func (p *pendingAcquires) resumeAll() {
	for requestID := range p.all {
		p.send(requestID)
	}
}
