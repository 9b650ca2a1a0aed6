// Giving back: the whole lease with its last grip, before that what one grip has.

package leasehold

import (
	"time"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
	"leasehold.dev/sdk/internal/clock"
)

// release: the whole lease is being given back. Answers have room for one.
type release struct {
	answers []chan<- error
	// goneAt is when the store has forgotten it, whatever became of the release.
	goneAt time.Duration
}

func (r *release) tell(err error) {
	for _, answer := range r.answers {
		answer <- err
	}
}

// lost: the broker says that the lease is over. It was given back within its validity, so the reason is this release
// or an earlier sending of it, unless the reason says otherwise.
func (r *release) lost(loss *LeaseLostError) {
	if loss.Reason == LostReleased || loss.Reason == LostByStore {
		r.tell(nil)
		return
	}
	r.tell(loss)
}

// part is what one grip of several gives back, lock by lock.
type part struct {
	requestID string
	locks     []lockName
	answer    chan<- error
}

// releases are those of one stream's leases.
type releases struct {
	keeper *keeper
	// closing are who waits for a release while the client is closed.
	closing []chan<- error
	// alone is the number of unary releases under way.
	alone int
}

// giveBack: a grip gives back what it has.
func (r *releases) giveBack(g *grip, done chan<- error) {
	owned := r.keeper.leases.all[g.leaseID]
	if owned == nil {
		// It was lost before; whoever asks knows why.
		done <- &LeaseLostError{Reason: LostClosed}
		r.giveBackLost(g.leaseID)
		return
	}
	owned.grips--
	if owned.release != nil {
		// A call under the lease was granted while all of it was given back.
		owned.release.answers = append(owned.release.answers, done)
		return
	}
	if owned.grips > 0 && len(g.locks) == 0 {
		done <- nil
		return
	}
	if owned.grips > 0 {
		owned.lastPart++
		owned.parts[owned.lastPart] = newPart(g, done)
		r.sendPart(g.leaseID, owned.lastPart)
		return
	}
	if owned.trust != nil {
		owned.trust.end(&LeaseLostError{Reason: LostReleased})
	}
	owned.release = &release{
		answers: []chan<- error{done},
		goneAt:  max(clock.Now(), owned.validUntil) + owned.ttl/2,
	}
	for _, part := range owned.parts {
		owned.release.answers = append(owned.release.answers, part.answer)
	}
	clear(owned.parts)
	r.send(g.leaseID)
}

// giveBackLost drops one grip of a lost lease. After the last one, it releases the lease at the broker so that the next
// waiter need not wait for its expiry.
func (r *releases) giveBackLost(leaseID string) {
	lost := r.keeper.leases.lost
	owned := lost[leaseID]
	if owned == nil {
		return
	}
	if owned.grips--; owned.grips > 0 {
		return
	}
	delete(lost, leaseID)
	owned.release = &release{goneAt: max(clock.Now(), owned.validUntil) + owned.ttl/2}
	r.keeper.leases.all[leaseID] = owned
	r.keeper.core.watch()
	r.send(leaseID)
}

// giveBackAllLost: the client is closed, and what it did under leases that are lost is over.
func (r *releases) giveBackAllLost() {
	for leaseID, owned := range r.keeper.leases.lost {
		owned.grips = 1
		r.giveBackLost(leaseID)
	}
}

func newPart(g *grip, done chan<- error) *part {
	p := &part{requestID: g.requestID, answer: done}
	for _, held := range g.locks {
		p.locks = append(p.locks, held.lock)
	}
	return p
}

// send sends a release: on the stream, or by itself for a lease that was on another one.
func (r *releases) send(leaseID string) {
	link, owned := r.keeper.link, r.keeper.leases.all[leaseID]
	if link == nil || owned == nil {
		return
	}
	if owned.isHere {
		release := &pb.HoldRelease{CallId: link.next(), LeaseId: leaseID}
		message := &pb.HoldRequest{Message: &pb.HoldRequest_Release{Release: release}}
		link.call(release.CallId, about{kind: kindRelease, key: leaseID}, message)
		return
	}
	lease := owned.lease
	r.alone++
	go func() {
		err := link.release(lease)
		r.keeper.core.mu.Lock()
		defer r.keeper.core.mu.Unlock()
		r.alone--
		if err == nil {
			r.released(leaseID)
		} else {
			r.refused(leaseID, statusOf(err))
		}
		r.keeper.closeLink()
	}()
}

// released: a release is confirmed.
func (r *releases) released(leaseID string) {
	if owned := r.keeper.leases.all[leaseID]; owned != nil && owned.release != nil {
		delete(r.keeper.leases.all, leaseID)
		owned.release.tell(nil)
	}
}

// refused: a release is not confirmed, for good or for now.
func (r *releases) refused(leaseID string, said *pb.Refused) {
	owned := r.keeper.leases.all[leaseID]
	if owned == nil || owned.release == nil {
		return
	}
	if isOpen(said) {
		r.keeper.putOff(jittered(repeatPause), about{kind: kindRelease, key: leaseID})
		return
	}
	delete(r.keeper.leases.all, leaseID)
	if _, ok := losses[said.GetReason()]; ok {
		owned.release.lost(lossOf(said))
		return
	}
	owned.release.tell(failed(ErrRefused, said.GetMessage()))
}

// unconfirmed: nobody has confirmed a release while the lease could have lived.
func (r *releases) unconfirmed(leaseID string) {
	owned := r.keeper.leases.all[leaseID]
	delete(r.keeper.leases.all, leaseID)
	owned.release.tell(failed(ErrUnconfirmed, ""))
}

// sendPart sends the release of the next lock of a part. Elsewhere than on its stream it would be refused.
func (r *releases) sendPart(leaseID string, number int) {
	link, owned := r.keeper.link, r.keeper.leases.all[leaseID]
	if link == nil || owned == nil || owned.parts[number] == nil || !owned.isHere {
		return
	}
	part := owned.parts[number]
	release := &pb.HoldRelease{
		CallId: link.next(), LeaseId: leaseID, Lock: part.locks[len(part.locks)-1].proto(), RequestId: part.requestID,
	}
	message := &pb.HoldRequest{Message: &pb.HoldRequest_Release{Release: release}}
	link.call(release.CallId, about{kind: kindPart, key: leaseID, part: number}, message)
}

// partReleased: a lock of a part is given back, with so many entries of it left.
func (r *releases) partReleased(of about, holdCount int32) {
	owned := r.keeper.leases.all[of.key]
	if owned == nil || owned.parts[of.part] == nil {
		return
	}
	part := owned.parts[of.part]
	last := len(part.locks) - 1
	if holdCount == 0 {
		owned.drop(part.locks[last])
	}
	part.locks = part.locks[:last]
	if last > 0 {
		r.sendPart(of.key, of.part)
		return
	}
	delete(owned.parts, of.part)
	part.answer <- nil
}

// partRefused: a lock of a part is not given back, for good or for now.
func (r *releases) partRefused(of about, said *pb.Refused) {
	if isOpen(said) {
		r.keeper.putOff(jittered(repeatPause), of)
		return
	}
	owned := r.keeper.leases.all[of.key]
	if owned == nil || owned.parts[of.part] == nil {
		return
	}
	part := owned.parts[of.part]
	delete(owned.parts, of.part)
	part.answer <- failed(ErrRefused, said.GetMessage())
}

// closed: the stream was closed, with all that was on it, or could not be.
func (r *releases) closed(isClosed bool) {
	for _, answer := range r.closing {
		if isClosed {
			answer <- nil
		} else {
			answer <- failed(ErrUnconfirmed, "")
		}
	}
	r.closing = nil
}
