// Leases of a session: adoption, renewal, attachment and loss.

package leasehold

import (
	"time"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
	"leasehold.dev/sdk/internal/clock"
)

// leaseRetryDelay is the upper bound of the delay before an attachment or a release is repeated after a temporary
// rejection.
const leaseRetryDelay = 100 * time.Millisecond

// leases is the leases of one session, by lease id.
type leases struct {
	session *session
	all     map[string]*heldLease
	// lost contains the lost leases whose work has not stopped yet.
	lost map[string]*heldLease
}

// adopt adds the lease that was granted to a call, with its validity counted from sentAt.
func (l *leases) adopt(granted *pb.Lease, acquire *pendingAcquire, sentAt time.Duration) {
	lease := newHeldLease(granted, acquire, sentAt)
	l.all[granted.GetLeaseId()] = lease
	if acquire.command == nil {
		l.releaseUndelivered(lease)
		return
	}
	l.deliver(lease)
}

// addLocks merges the grants of a call under the lease, and delivers a handle to its caller.
func (l *leases) addLocks(granted *pb.Lease, acquire *pendingAcquire) {
	lease := l.all[granted.GetLeaseId()]
	if lease == nil || lease.validity == nil {
		// The call has attached the lease to this stream, where it must not be renewed.
		l.detach(granted.GetLeaseId())
		acquire.complete(acquireResult{err: &LeaseLostError{Reason: LostExpired}})
		return
	}
	lease.handles++
	lease.mergeGrants(granted, &acquire.params)
	acquire.complete(acquireResult{handle: l.newHandle(lease, &acquire.params)})
}

// cancelUndelivered releases an undelivered lease whose caller has left.
func (l *leases) cancelUndelivered(requestID string) {
	for _, lease := range l.all {
		if lease.undelivered != nil && lease.undelivered.params.requestID == requestID {
			l.releaseUndelivered(lease)
		}
	}
}

func (l *leases) releaseUndelivered(lease *heldLease) {
	requestID := lease.undelivered.params.requestID
	lease.undelivered = nil
	newLeaseHandle(l.session, lease.id(), requestID, nil, lease.validity).release()
}

func (l *leases) newHandle(lease *heldLease, params *acquireParams) *leaseHandle {
	requested := params.locks()
	var grants []lockGrant
	for _, grant := range lease.proto.GetGrants() {
		if lock := lockOfGrant(grant); requested[lock] {
			grants = append(grants, lockGrant{lock, grant.GetFencingToken()})
		}
	}
	return newLeaseHandle(l.session, lease.id(), params.requestID, grants, lease.validity)
}

// deliver delivers a new lease to its caller if half of its validity is left, so that the caller has time to use the
// lock. Otherwise the confirmation of the next heartbeat delivers it, which is due soon.
func (l *leases) deliver(lease *heldLease) {
	if clock.Now()+lease.ttl/2 > lease.validUntil {
		return
	}
	acquire := lease.undelivered
	lease.undelivered = nil
	lease.validity = newLeaseValidity(lease.validUntil, lease.ttl)
	acquire.complete(acquireResult{handle: l.newHandle(lease, &acquire.params)})
}

// onHeartbeatAck extends the leases that a heartbeat has renewed in the store.
func (l *leases) onHeartbeatAck(ack *pb.HeartbeatAck) {
	sentAt, ok := l.session.connection.heartbeatSentAt(ack.GetSequence())
	if !ok {
		return
	}
	for _, extended := range ack.GetLeases() {
		l.onExtended(sentAt, extended)
	}
}

func (l *leases) onExtended(sentAt time.Duration, extended *pb.LeaseExtended) {
	lease := l.all[extended.GetLeaseId()]
	if lease == nil || int(extended.GetGrantCount()) != len(lease.proto.GetGrants()) {
		return
	}
	lease.ttl = durationOf(extended.GetTtl())
	validUntil := sentAt + lease.ttl
	lease.validUntil = max(lease.validUntil, validUntil)
	switch {
	case lease.undelivered != nil:
		l.deliver(lease)
	case lease.validity != nil && lease.pendingRelease == nil && !lease.validity.extend(validUntil, lease.ttl):
		l.expire(lease)
	}
}

// expire stops renewing a lease whose validity has ended. The lock is released only after the protected work has
// stopped; see keepLostLease.
func (l *leases) expire(lease *heldLease) {
	delete(l.all, lease.id())
	l.session.runtime.log().Warn("lock lost: no renewal was confirmed in time", "lease_id", lease.id(),
		"locks", lease.lockNames())
	if lease.isAttached {
		l.detach(lease.id())
	}
	l.endLease(lease, &LeaseLostError{Reason: LostExpired})
	l.keepLostLease(lease)
}

// endLease ends the validity of a lease, fails its partial releases, and fails the acquires under it.
func (l *leases) endLease(lease *heldLease, loss *LeaseLostError) {
	lease.endValidity(loss)
	for _, partial := range lease.partialReleases {
		partial.result <- lease.validity.loss()
	}
	clear(lease.partialReleases)
	l.session.pending.sendUnder(lease.id())
}

// keepLostLease stores a lost lease until the work under it has stopped. Then its lock is released, before the lease
// expires in the store.
func (l *leases) keepLostLease(lease *heldLease) {
	now := clock.Now()
	for leaseID, lost := range l.lost {
		if now > lost.validUntil+lost.ttl/2 {
			delete(l.lost, leaseID)
		}
	}
	isDelivered := lease.validity != nil
	lease.isAttached, lease.undelivered = false, nil
	l.lost[lease.id()] = lease
	if !isDelivered {
		l.session.releases.releaseLost(lease.id())
	}
}

func (l *leases) detach(leaseID string) {
	if connection := l.session.connection; connection != nil {
		detach := &pb.DetachLease{CallId: connection.nextCallID(), LeaseId: leaseID}
		connection.sendCall(detach.CallId, callSubject{}, &pb.HoldRequest{Message: &pb.HoldRequest_Detach{Detach: detach}})
	}
}

// attach sends the attachment of a lease to this stream.
func (l *leases) attach(leaseID string) {
	connection, lease := l.session.connection, l.all[leaseID]
	switch {
	case connection == nil || lease == nil:
	case lease.pendingRelease != nil:
		l.session.releases.send(leaseID)
	case lease.validity == nil || lease.validity.loss() != nil:
		l.expire(lease)
	default:
		lease.attachNumber++
		attach := &pb.AttachLease{CallId: connection.nextCallID(), Lease: lease.proto, AttachNumber: lease.attachNumber}
		message := &pb.HoldRequest{Message: &pb.HoldRequest_Attach{Attach: attach}}
		connection.sendCall(attach.CallId, callSubject{kind: callAttach, key: leaseID}, message)
	}
}

// onAttached handles the confirmed attachment of a lease. It sends the releases and acquires that waited for it.
func (l *leases) onAttached(attached *pb.LeaseAttached) {
	l.session.connection.complete(attached.GetCallId())
	lease := l.all[attached.GetLeaseId()]
	if lease == nil {
		// The lease was lost before the response arrived.
		l.detach(attached.GetLeaseId())
		return
	}
	lease.isAttached, lease.attachedAt = true, clock.Now()
	if lease.pendingRelease != nil {
		l.session.releases.send(lease.id())
		return
	}
	for number := range lease.partialReleases {
		l.session.releases.sendPartialRelease(lease.id(), number)
	}
	l.session.pending.sendUnder(lease.id())
}

// onAttachRefused repeats a rejected attachment if the rejection is temporary. Otherwise the lease is lost, or its
// release is sent as a unary call.
func (l *leases) onAttachRefused(leaseID string, refused *pb.Refused) {
	lease := l.all[leaseID]
	switch {
	case isRetryable(refused):
		l.session.retryLater(jittered(leaseRetryDelay), callSubject{kind: callAttach, key: leaseID})
	case lease != nil && lease.pendingRelease != nil:
		l.session.releases.send(leaseID)
	default:
		l.onEnded(leaseID, lossFromRefused(refused))
	}
}

// onEnded handles the end of a lease that the broker reports.
func (l *leases) onEnded(leaseID string, loss *LeaseLostError) {
	lease := l.all[leaseID]
	if lease == nil {
		return
	}
	delete(l.all, leaseID)
	if lease.pendingRelease != nil {
		lease.pendingRelease.onLeaseEnded(loss)
		return
	}
	l.session.runtime.log().Warn("lock lost", "lease_id", leaseID, "locks", lease.lockNames(), "why", loss.Error())
	l.endLease(lease, loss)
	if loss.Reason == LostRevoked || loss.Reason == LostMaxHold {
		l.keepLostLease(lease)
	}
}

// close ends a lease because the client is closed. Its pending releases complete with the end of the stream.
func (l *leases) close(leaseID string) {
	lease := l.all[leaseID]
	delete(l.all, leaseID)
	if lease.undelivered != nil {
		lease.undelivered.complete(acquireResult{err: newError(ErrClosed, "")})
		lease.undelivered = nil
	}
	lease.endValidity(&LeaseLostError{Reason: LostClosed})
	results := &l.session.releases.closingResults
	for _, partial := range lease.partialReleases {
		*results = append(*results, partial.result)
	}
	if lease.pendingRelease != nil {
		*results = append(*results, lease.pendingRelease.results...)
	}
}

// checkDeadlines ends the leases, deliveries and releases whose deadline has passed.
func (l *leases) checkDeadlines(now time.Duration) {
	for leaseID, lease := range l.all {
		switch {
		case !lease.hasDeadlinePassed(now):
		case lease.pendingRelease != nil:
			l.session.releases.failUnconfirmed(leaseID)
		case lease.validity == nil:
			l.discardUndelivered(lease)
		default:
			l.expire(lease)
		}
	}
}

// discardUndelivered drops an undelivered lease whose validity no heartbeat has extended in time.
func (l *leases) discardUndelivered(lease *heldLease) {
	delete(l.all, lease.id())
	l.detach(lease.id())
	err := newError(ErrUnavailable, "the grant arrived after the validity of its lease had ended")
	lease.undelivered.complete(acquireResult{err: err})
}

// onStreamLost marks all leases as detached from the stream. Undelivered leases become pending acquires again.
func (l *leases) onStreamLost() {
	for leaseID, lease := range l.all {
		lease.isAttached = false
		if acquire := lease.undelivered; acquire != nil {
			// The lease was not delivered, so its acquire is sent again.
			delete(l.all, leaseID)
			acquire.callID = 0
			l.session.pending.all[acquire.params.requestID] = acquire
		}
	}
}

// resumeAll attaches all leases to a new stream.
func (l *leases) resumeAll() {
	for leaseID := range l.all {
		l.attach(leaseID)
	}
}

// heartbeatIfDue sends a heartbeat if the leases or pending acquires need one.
func (l *leases) heartbeatIfDue(now time.Duration) {
	connection := l.session.connection
	if connection == nil {
		return
	}
	lastSentAt, hasSent := connection.lastHeartbeatSentAt()
	interval, isEarly := time.Duration(0), false
	limitInterval := func(needed time.Duration) {
		if interval == 0 || needed < interval {
			interval = needed
		}
	}
	for _, lease := range l.all {
		if !lease.isAttached {
			continue
		}
		limitInterval(lease.heartbeatInterval())
		// Leases that were just attached or were granted late share one early heartbeat, because their broker is busy.
		isEarly = isEarly || lease.attachedAt > lastSentAt || lease.grantedAt > lastSentAt && lease.isRenewalDue(now)
	}
	for _, acquire := range l.session.pending.all {
		limitInterval(acquire.heartbeatInterval())
	}
	if interval == 0 {
		return
	}
	if isEarly {
		interval /= 4
	}
	if !hasSent || now >= lastSentAt+interval {
		connection.sendHeartbeat()
	}
}

// checkSilence starts a failover if the broker has sent nothing for a quarter of a TTL after a heartbeat. Its
// connection may seem to work nevertheless.
func (l *leases) checkSilence(now time.Duration) {
	connection := l.session.connection
	if connection == nil || connection.unansweredSince == 0 || !l.session.failover.isIdle() {
		return
	}
	for _, lease := range l.all {
		if lease.isAttached && now > connection.unansweredSince+lease.ttl/4 {
			l.session.failover.start(0)
			return
		}
	}
}
