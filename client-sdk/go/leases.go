// Leases: kept by heartbeats, trusted no longer than was confirmed.

package leasehold

import (
	"time"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
	"leasehold.dev/sdk/internal/clock"
)

// repeatPause is how soon an attachment or a release is repeated that was refused for now.
const repeatPause = 100 * time.Millisecond

// leases are those of one stream, by their ids.
type leases struct {
	keeper *keeper
	all    map[string]*owned
	// lost holds the lost leases whose work has not stopped yet.
	lost map[string]*owned
}

// own takes on the lease that was granted to a call, with validity since that moment.
func (l *leases) own(lease *pb.Lease, wait *wait, sent time.Duration) {
	owned := newOwned(lease, wait, sent)
	l.all[lease.GetLeaseId()] = owned
	if wait.asked == nil {
		l.giveBackUnborn(owned)
		return
	}
	l.handOut(owned)
}

// enter hands out what a call under a lease has added to it.
func (l *leases) enter(lease *pb.Lease, wait *wait) {
	owned := l.all[lease.GetLeaseId()]
	if owned == nil || owned.trust == nil {
		// It is on this stream again, and must not be renewed.
		l.detach(lease.GetLeaseId())
		wait.tell(answer{err: &LeaseLostError{Reason: LostExpired}})
		return
	}
	owned.grips++
	owned.merge(lease, &wait.call)
	wait.tell(answer{grip: l.grip(owned, &wait.call)})
}

// cancelUnborn: the caller of a lease that is not handed out yet is gone.
func (l *leases) cancelUnborn(requestID string) {
	for _, owned := range l.all {
		if owned.unborn != nil && owned.unborn.call.requestID == requestID {
			l.giveBackUnborn(owned)
		}
	}
}

func (l *leases) giveBackUnborn(owned *owned) {
	requestID := owned.unborn.call.requestID
	owned.unborn = nil
	newGrip(l.keeper, owned.id(), requestID, nil, owned.trust).giveBack()
}

func (l *leases) grip(owned *owned, call *call) *grip {
	asked := call.locks()
	var locks []held
	for _, grant := range owned.lease.GetGrants() {
		if lock := lockOfGrant(grant); asked[lock] {
			locks = append(locks, held{lock, grant.GetFencingToken()})
		}
	}
	return newGrip(l.keeper, owned.id(), call.requestID, locks, owned.trust)
}

// handOut gives it to its caller if half of its validity is left. Otherwise the next heartbeat does, which is due
// soon: nobody should get a lock that is to be given up at once.
func (l *leases) handOut(owned *owned) {
	if clock.Now()+owned.ttl/2 > owned.validUntil {
		return
	}
	wait := owned.unborn
	owned.unborn = nil
	owned.trust = newTrust(owned.validUntil, owned.ttl)
	wait.tell(answer{grip: l.grip(owned, &wait.call)})
}

// acknowledged: a heartbeat has reached the store.
func (l *leases) acknowledged(ack *pb.HeartbeatAck) {
	sent, ok := l.keeper.link.beatSent(ack.GetSequence())
	if !ok {
		return
	}
	for _, extended := range ack.GetLeases() {
		l.extended(sent, extended)
	}
}

func (l *leases) extended(sent time.Duration, said *pb.LeaseExtended) {
	owned := l.all[said.GetLeaseId()]
	if owned == nil || int(said.GetGrantCount()) != len(owned.lease.GetGrants()) {
		return
	}
	owned.ttl = span(said.GetTtl())
	validUntil := sent + owned.ttl
	owned.validUntil = max(owned.validUntil, validUntil)
	switch {
	case owned.unborn != nil:
		l.handOut(owned)
	case owned.trust != nil && owned.release == nil && !owned.trust.extend(validUntil, owned.ttl):
		l.lapse(owned)
	}
}

// lapse stops renewing a lease whose validity has passed. The lock is released only after the guarded work has
// stopped; see keepLost.
func (l *leases) lapse(owned *owned) {
	delete(l.all, owned.id())
	l.keeper.core.log().Warn("lock lost: no renewal was confirmed in time", "lease_id", owned.id(), "locks", owned.names())
	if owned.isHere {
		l.detach(owned.id())
	}
	l.over(owned, &LeaseLostError{Reason: LostExpired})
	l.keepLost(owned)
}

// over: nobody may rely on it any more.
func (l *leases) over(owned *owned, loss *LeaseLostError) {
	owned.end(loss)
	for _, part := range owned.parts {
		part.answer <- owned.trust.loss()
	}
	clear(owned.parts)
	l.keeper.waits.sendUnder(owned.id())
}

// keepLost keeps a lost lease until the work under it has stopped. Then its lock is released, before the lease expires
// in the store.
func (l *leases) keepLost(owned *owned) {
	now := clock.Now()
	for leaseID, one := range l.lost {
		if now > one.validUntil+one.ttl/2 {
			delete(l.lost, leaseID)
		}
	}
	isHeld := owned.trust != nil
	owned.isHere, owned.unborn = false, nil
	l.lost[owned.id()] = owned
	if !isHeld {
		l.keeper.releases.giveBackLost(owned.id())
	}
}

func (l *leases) detach(leaseID string) {
	if link := l.keeper.link; link != nil {
		detach := &pb.DetachLease{CallId: link.next(), LeaseId: leaseID}
		link.call(detach.CallId, about{}, &pb.HoldRequest{Message: &pb.HoldRequest_Detach{Detach: detach}})
	}
}

// attach puts a lease on this stream.
func (l *leases) attach(leaseID string) {
	link, owned := l.keeper.link, l.all[leaseID]
	switch {
	case link == nil || owned == nil:
	case owned.release != nil:
		l.keeper.releases.send(leaseID)
	case owned.trust == nil || owned.trust.loss() != nil:
		l.lapse(owned)
	default:
		owned.attachNumber++
		attach := &pb.AttachLease{CallId: link.next(), Lease: owned.lease, AttachNumber: owned.attachNumber}
		message := &pb.HoldRequest{Message: &pb.HoldRequest_Attach{Attach: attach}}
		link.call(attach.CallId, about{kind: kindAttach, key: leaseID}, message)
	}
}

// attached: the lease is on this stream.
func (l *leases) attached(said *pb.LeaseAttached) {
	l.keeper.link.answered(said.GetCallId())
	owned := l.all[said.GetLeaseId()]
	if owned == nil {
		// Lost on the way.
		l.detach(said.GetLeaseId())
		return
	}
	owned.isHere, owned.cameAt = true, clock.Now()
	if owned.release != nil {
		l.keeper.releases.send(owned.id())
		return
	}
	for number := range owned.parts {
		l.keeper.releases.sendPart(owned.id(), number)
	}
	l.keeper.waits.sendUnder(owned.id())
}

// attachRefused: the lease is not on this stream, for good or for now.
func (l *leases) attachRefused(leaseID string, said *pb.Refused) {
	owned := l.all[leaseID]
	switch {
	case isOpen(said):
		l.keeper.putOff(jittered(repeatPause), about{kind: kindAttach, key: leaseID})
	case owned != nil && owned.release != nil:
		l.keeper.releases.send(leaseID)
	default:
		l.lose(leaseID, lossOf(said))
	}
}

// lose: the broker says that a lease is over.
func (l *leases) lose(leaseID string, loss *LeaseLostError) {
	owned := l.all[leaseID]
	if owned == nil {
		return
	}
	delete(l.all, leaseID)
	if owned.release != nil {
		owned.release.lost(loss)
		return
	}
	l.keeper.core.log().Warn("lock lost", "lease_id", leaseID, "locks", owned.names(), "why", loss.Error())
	l.over(owned, loss)
	if loss.Reason == LostRevoked || loss.Reason == LostMaxHold {
		l.keepLost(owned)
	}
}

// close: the client is closed.
func (l *leases) close(leaseID string) {
	owned := l.all[leaseID]
	delete(l.all, leaseID)
	if owned.unborn != nil {
		owned.unborn.tell(answer{err: failed(ErrClosed, "")})
		owned.unborn = nil
	}
	owned.end(&LeaseLostError{Reason: LostClosed})
	closing := &l.keeper.releases.closing
	for _, part := range owned.parts {
		*closing = append(*closing, part.answer)
	}
	if owned.release != nil {
		*closing = append(*closing, owned.release.answers...)
	}
}

// watchValidity ends what ran out.
func (l *leases) watchValidity(now time.Duration) {
	for leaseID, owned := range l.all {
		switch {
		case !owned.isDue(now):
		case owned.release != nil:
			l.keeper.releases.unconfirmed(leaseID)
		case owned.trust == nil:
			l.notBorn(owned)
		default:
			l.lapse(owned)
		}
	}
}

// notBorn: no heartbeat has made enough of a late grant.
func (l *leases) notBorn(owned *owned) {
	delete(l.all, owned.id())
	l.detach(owned.id())
	owned.unborn.tell(answer{err: failed(ErrUnavailable, "the lock was granted so late that nobody could rely on it")})
}

// offStream: nothing is on a stream any more.
func (l *leases) offStream() {
	for leaseID, owned := range l.all {
		owned.isHere = false
		if wait := owned.unborn; wait != nil {
			// It was not handed out: its call begins again.
			delete(l.all, leaseID)
			wait.callID = 0
			l.keeper.waits.all[wait.call.requestID] = wait
		}
	}
}

// takeUp brings every lease to a new stream.
func (l *leases) takeUp() {
	for leaseID := range l.all {
		l.attach(leaseID)
	}
}

// beatIfDue sends the heartbeat that the leases and waits need.
func (l *leases) beatIfDue(now time.Duration) {
	link := l.keeper.link
	if link == nil {
		return
	}
	last, hasBeaten := link.lastBeatSent()
	pause, isSoon := time.Duration(0), false
	note := func(interval time.Duration) {
		if pause == 0 || interval < pause {
			pause = interval
		}
	}
	for _, owned := range l.all {
		if !owned.isHere {
			continue
		}
		note(owned.interval())
		// One soon for all that have just come here, or were granted late: their broker is busy.
		isSoon = isSoon || owned.cameAt > last || owned.grantedAt > last && owned.isOld(now)
	}
	for _, wait := range l.keeper.waits.all {
		note(wait.interval())
	}
	if pause == 0 {
		return
	}
	if isSoon {
		pause /= 4
	}
	if !hasBeaten || now >= last+pause {
		link.beat()
	}
}

// watchSilence: a broker that answers no heartbeat for a quarter of a ttl may be gone, though its connection seems to
// live.
func (l *leases) watchSilence(now time.Duration) {
	link := l.keeper.link
	if link == nil || link.silentSince == 0 || !l.keeper.moves.isSettled() {
		return
	}
	for _, owned := range l.all {
		if owned.isHere && now > link.silentSince+owned.ttl/4 {
			l.keeper.moves.leave(0)
			return
		}
	}
}
