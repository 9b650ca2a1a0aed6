// Releases: of the whole lease with its last handle, and of the locks of earlier handles one by one.

package leasehold

import (
	"time"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
	"leasehold.dev/sdk/internal/clock"
)

// pendingRelease is the release of a whole lease. The channels in results have capacity 1.
type pendingRelease struct {
	results []chan<- error
	// endedAt is the time at which the lease has expired in the store, even if no release arrived.
	endedAt time.Duration
}

func (r *pendingRelease) complete(err error) {
	for _, result := range r.results {
		result <- err
	}
}

// onLeaseEnded completes the release because the broker reports that the lease has ended. The release was sent within
// the validity of the lease. LostReleased and LostByStore therefore mean that this release, or an earlier attempt of
// it, succeeded.
func (r *pendingRelease) onLeaseEnded(loss *LeaseLostError) {
	if loss.Reason == LostReleased || loss.Reason == LostByStore {
		r.complete(nil)
		return
	}
	r.complete(loss)
}

// partialRelease is the release of the locks of one handle of several, lock by lock.
type partialRelease struct {
	requestID string
	locks     []lockName
	result    chan<- error
}

// releases sends the releases of the leases of one session.
type releases struct {
	session *session
	// closingResults is the callers that wait for a release while the client is being closed.
	closingResults []chan<- error
	// unaryCalls is the number of unary releases in flight.
	unaryCalls int
}

// release releases what one handle holds. The last handle releases the whole lease.
func (r *releases) release(h *leaseHandle, result chan<- error) {
	lease := r.session.leases.all[h.leaseID]
	if lease == nil {
		// The lease was lost before; the caller has the reason.
		result <- &LeaseLostError{Reason: LostClosed}
		r.releaseLost(h.leaseID)
		return
	}
	lease.handles--
	if lease.pendingRelease != nil {
		// A call under the lease was granted while the whole lease was being released.
		lease.pendingRelease.results = append(lease.pendingRelease.results, result)
		return
	}
	if lease.handles > 0 && len(h.grants) == 0 {
		result <- nil
		return
	}
	if lease.handles > 0 {
		lease.lastReleaseNumber++
		lease.partialReleases[lease.lastReleaseNumber] = newPartialRelease(h, result)
		r.sendPartialRelease(h.leaseID, lease.lastReleaseNumber)
		return
	}
	if lease.validity != nil {
		lease.validity.expire(&LeaseLostError{Reason: LostReleased})
	}
	lease.pendingRelease = &pendingRelease{
		results: []chan<- error{result},
		endedAt: max(clock.Now(), lease.validUntil) + lease.ttl/2,
	}
	for _, partial := range lease.partialReleases {
		lease.pendingRelease.results = append(lease.pendingRelease.results, partial.result)
	}
	clear(lease.partialReleases)
	r.send(h.leaseID)
}

// releaseLost drops one handle of a lost lease. After the last one, it releases the lease at the broker so that the
// next waiter need not wait for its expiry.
func (r *releases) releaseLost(leaseID string) {
	lost := r.session.leases.lost
	lease := lost[leaseID]
	if lease == nil {
		return
	}
	if lease.handles--; lease.handles > 0 {
		return
	}
	delete(lost, leaseID)
	lease.pendingRelease = &pendingRelease{endedAt: max(clock.Now(), lease.validUntil) + lease.ttl/2}
	r.session.leases.all[leaseID] = lease
	r.session.runtime.startTimer()
	r.send(leaseID)
}

// releaseAllLost releases all lost leases when the client closes, because the work under them has ended.
func (r *releases) releaseAllLost() {
	for leaseID, lease := range r.session.leases.lost {
		lease.handles = 1
		r.releaseLost(leaseID)
	}
}

func newPartialRelease(h *leaseHandle, result chan<- error) *partialRelease {
	p := &partialRelease{requestID: h.requestID, result: result}
	for _, grant := range h.grants {
		p.locks = append(p.locks, grant.lock)
	}
	return p
}

// send sends a release: on the stream, or as a unary call for a lease that is not attached to the stream.
func (r *releases) send(leaseID string) {
	connection, lease := r.session.connection, r.session.leases.all[leaseID]
	if connection == nil || lease == nil {
		return
	}
	if lease.isAttached {
		release := &pb.HoldRelease{CallId: connection.nextCallID(), LeaseId: leaseID}
		message := &pb.HoldRequest{Message: &pb.HoldRequest_Release{Release: release}}
		connection.sendCall(release.CallId, callSubject{kind: callRelease, key: leaseID}, message)
		return
	}
	proto := lease.proto
	r.unaryCalls++
	go func() {
		err := connection.releaseByUnaryCall(proto)
		r.session.runtime.mu.Lock()
		defer r.session.runtime.mu.Unlock()
		r.unaryCalls--
		if err == nil {
			r.onReleased(leaseID)
		} else {
			r.onRefused(leaseID, refusedFromStatus(err))
		}
		r.session.closeStream()
	}()
}

// onReleased completes a confirmed release.
func (r *releases) onReleased(leaseID string) {
	if lease := r.session.leases.all[leaseID]; lease != nil && lease.pendingRelease != nil {
		delete(r.session.leases.all, leaseID)
		lease.pendingRelease.complete(nil)
	}
}

// onRefused repeats a rejected release if the rejection is temporary, and fails it otherwise.
func (r *releases) onRefused(leaseID string, refused *pb.Refused) {
	lease := r.session.leases.all[leaseID]
	if lease == nil || lease.pendingRelease == nil {
		return
	}
	if isRetryable(refused) {
		r.session.retryLater(jittered(leaseRetryDelay), callSubject{kind: callRelease, key: leaseID})
		return
	}
	delete(r.session.leases.all, leaseID)
	if _, ok := lostByReason[refused.GetReason()]; ok {
		lease.pendingRelease.onLeaseEnded(lossFromRefused(refused))
		return
	}
	lease.pendingRelease.complete(newError(ErrRefused, refused.GetMessage()))
}

// failUnconfirmed fails a release that no broker confirmed while the lease could live.
func (r *releases) failUnconfirmed(leaseID string) {
	lease := r.session.leases.all[leaseID]
	delete(r.session.leases.all, leaseID)
	lease.pendingRelease.complete(newError(ErrUnconfirmed, ""))
}

// sendPartialRelease sends the release of the next lock of a partial release. Brokers reject it on other streams than
// that of the lease.
func (r *releases) sendPartialRelease(leaseID string, number int) {
	connection, lease := r.session.connection, r.session.leases.all[leaseID]
	if connection == nil || lease == nil || lease.partialReleases[number] == nil || !lease.isAttached {
		return
	}
	partial := lease.partialReleases[number]
	release := &pb.HoldRelease{
		CallId: connection.nextCallID(), LeaseId: leaseID,
		Lock: partial.locks[len(partial.locks)-1].proto(), RequestId: partial.requestID,
	}
	message := &pb.HoldRequest{Message: &pb.HoldRequest_Release{Release: release}}
	subject := callSubject{kind: callPartialRelease, key: leaseID, releaseNumber: number}
	connection.sendCall(release.CallId, subject, message)
}

// onPartialRelease handles a confirmed release of one lock of a partial release. holdCount is the number of entries
// that the lease has left on the lock.
func (r *releases) onPartialRelease(subject callSubject, holdCount int32) {
	lease := r.session.leases.all[subject.key]
	if lease == nil || lease.partialReleases[subject.releaseNumber] == nil {
		return
	}
	partial := lease.partialReleases[subject.releaseNumber]
	last := len(partial.locks) - 1
	if holdCount == 0 {
		lease.removeGrant(partial.locks[last])
	}
	partial.locks = partial.locks[:last]
	if last > 0 {
		r.sendPartialRelease(subject.key, subject.releaseNumber)
		return
	}
	delete(lease.partialReleases, subject.releaseNumber)
	partial.result <- nil
}

// onPartialReleaseRefused repeats a rejected release of one lock if the rejection is temporary, and fails the partial
// release otherwise.
func (r *releases) onPartialReleaseRefused(subject callSubject, refused *pb.Refused) {
	if isRetryable(refused) {
		r.session.retryLater(jittered(leaseRetryDelay), subject)
		return
	}
	lease := r.session.leases.all[subject.key]
	if lease == nil || lease.partialReleases[subject.releaseNumber] == nil {
		return
	}
	partial := lease.partialReleases[subject.releaseNumber]
	delete(lease.partialReleases, subject.releaseNumber)
	partial.result <- newError(ErrRefused, refused.GetMessage())
}

// completeClosing completes the pending releases when the client is closed. isConfirmed is true if the stream was
// closed with its leases.
func (r *releases) completeClosing(isConfirmed bool) {
	for _, result := range r.closingResults {
		if isConfirmed {
			result <- nil
		} else {
			result <- newError(ErrUnconfirmed, "")
		}
	}
	r.closingResults = nil
}
