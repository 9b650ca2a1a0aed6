// Keeps the leases and waits of one stream alive, on one broker after the other.

package leasehold

import (
	"time"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
	"leasehold.dev/sdk/internal/clock"
)

// keeper and its parts are touched under the client's lock only.
type keeper struct {
	core     *core
	link     *link
	moves    moves
	waits    waits
	leases   leases
	releases releases
	// again is what was refused for now, and when to send it again.
	again        []putOff
	isOver       bool
	closed       func(isClosed bool)
	closeBy      time.Duration
	closeLinkBy  time.Duration
	isLinkClosed bool
}

type putOff struct {
	at   time.Duration
	what about
}

func newKeeper(core *core) *keeper {
	k := &keeper{core: core}
	k.moves = newMoves(k)
	k.waits = waits{keeper: k, all: map[string]*wait{}}
	k.leases = leases{keeper: k, all: map[string]*owned{}, lost: map[string]*owned{}}
	k.releases = releases{keeper: k}
	k.moves.leave(0)
	return k
}

// load is how many leases and waits it has.
func (k *keeper) load() int {
	return len(k.waits.all) + len(k.leases.all)
}

// isIdle says whether the time is of no interest.
func (k *keeper) isIdle() bool {
	return k.load() == 0 && k.moves.isSettled() && k.closed == nil
}

// putOff has something sent again after a while.
func (k *keeper) putOff(pause time.Duration, what about) {
	k.again = append(k.again, putOff{clock.Now() + pause, what})
}

// hear is a message of the broker.
func (k *keeper) hear(l *link, response *pb.HoldResponse) {
	if l != k.link {
		return
	}
	l.heard()
	switch said := response.GetMessage().(type) {
	case *pb.HoldResponse_Ack:
		k.leases.acknowledged(said.Ack)
	case *pb.HoldResponse_Granted:
		k.waits.granted(said.Granted)
	case *pb.HoldResponse_Released:
		k.released(said.Released)
	case *pb.HoldResponse_Queued:
		k.waits.queued(said.Queued)
	case *pb.HoldResponse_Refused:
		k.refused(said.Refused)
	case *pb.HoldResponse_Attached:
		k.leases.attached(said.Attached)
	case *pb.HoldResponse_Ended:
		k.leases.lose(said.Ended.GetLeaseId(), endOf(said.Ended))
	case *pb.HoldResponse_Reconnect:
		k.moves.leave(span(said.Reconnect.GetDelay()))
	case *pb.HoldResponse_Done:
		if call, _ := l.answered(said.Done.GetCallId()); call.about.kind == kindCredential {
			l.credentialAccepted()
		}
	case *pb.HoldResponse_ReleaseRequested:
		asked := said.ReleaseRequested
		k.core.log().Info("the broker asks for a lease", "lease_id", asked.GetLeaseId(), "message", asked.GetMessage())
	}
	// An unknown message is of a newer broker.
}

func (k *keeper) released(said *pb.Released) {
	call, _ := k.link.answered(said.GetCallId())
	switch call.about.kind {
	case kindRelease:
		k.releases.released(call.about.key)
	case kindPart:
		k.releases.partReleased(call.about, said.GetHoldCount())
	}
}

func (k *keeper) refused(said *pb.Refused) {
	call, _ := k.link.answered(said.GetCallId())
	switch call.about.kind {
	case kindAcquire:
		k.waits.refused(call.about.key, said)
	case kindAttach:
		k.leases.attachRefused(call.about.key, said)
	case kindRelease:
		k.releases.refused(call.about.key, said)
	case kindPart:
		k.releases.partRefused(call.about, said)
	case kindCredential:
		k.credentialRefused(said.GetMessage())
	}
}

// tick looks at the time.
func (k *keeper) tick(now time.Duration) {
	if k.closed != nil {
		k.closeLink()
		if now >= k.closeBy {
			k.end(false)
		}
		return
	}
	k.leases.watchValidity(now)
	k.waits.watch(now)
	k.leases.watchSilence(now)
	k.leases.beatIfDue(now)
	k.watchCredential(now)
	k.watchLife(now)
	k.sendAgain(now)
	k.moves.tick(now)
}

// watchLife asks whether anybody is on the other side when that has said nothing for a while.
func (k *keeper) watchLife(now time.Duration) {
	l := k.link
	if l == nil || l.isAsked || k.load() == 0 || now < l.heardAt+lifeLimit {
		return
	}
	l.isAsked = true
	go func() {
		isThere := l.isThere()
		k.core.mu.Lock()
		defer k.core.mu.Unlock()
		l.isAsked = false
		switch {
		case isThere:
			l.heardAt = clock.Now()
		case l.heardAt < now:
			l.cut()
			k.broken(l)
		}
	}()
}

func (k *keeper) sendAgain(now time.Duration) {
	if k.link == nil {
		return
	}
	var due, later []putOff
	for _, one := range k.again {
		if one.at <= now {
			due = append(due, one)
		} else {
			later = append(later, one)
		}
	}
	k.again = later
	for _, one := range due {
		switch one.what.kind {
		case kindAcquire:
			k.waits.send(one.what.key)
		case kindAttach:
			k.leases.attach(one.what.key)
		case kindRelease:
			k.releases.send(one.what.key)
		case kindPart:
			k.releases.sendPart(one.what.key, one.what.part)
		}
	}
}

// close gives everything back, until then, and ends. What it tells: whether the broker has heard of it.
func (k *keeper) close(by time.Duration, done func(isClosed bool)) {
	k.isOver = true
	isEmpty := k.load() == 0
	k.releases.giveBackAllLost()
	for _, wait := range k.waits.all {
		wait.tell(answer{err: failed(ErrClosed, "")})
	}
	clear(k.waits.all)
	for leaseID := range k.leases.all {
		k.leases.close(leaseID)
	}
	k.moves.stop()
	now := clock.Now()
	k.closed, k.closeBy, k.closeLinkBy = done, by, now+(by-now)/2
	if k.link == nil {
		k.end(isEmpty)
		return
	}
	k.closeLink()
}

// closeLink closes the stream once the keeper is closing and no unary release is under way, or after half of the
// shutdown time.
func (k *keeper) closeLink() {
	isDue := k.releases.alone == 0 || clock.Now() >= k.closeLinkBy
	if k.closed != nil && k.link != nil && !k.isLinkClosed && isDue {
		k.isLinkClosed = true
		k.link.close()
	}
}

// broken notes that a stream is gone.
func (k *keeper) broken(l *link) {
	if l != k.link {
		return
	}
	k.link = nil
	if k.closed != nil {
		k.end(true)
		return
	}
	k.core.log().Debug("the lease stream broke", "endpoint", l.endpoint.name)
	k.offStream()
	k.moves.broken()
}

// take brings everything to a new stream. What the old one would still say is said again here.
func (k *keeper) take(l *link) {
	old := k.link
	k.link = l
	l.heard()
	if old != nil {
		old.cut()
	}
	k.offStream()
	k.leases.takeUp()
	k.waits.takeUp()
}

func (k *keeper) offStream() {
	k.again = nil
	k.waits.offStream()
	k.leases.offStream()
}

func (k *keeper) end(isClosed bool) {
	done, l := k.closed, k.link
	k.closed, k.link = nil, nil
	if l != nil {
		l.cut()
	}
	k.releases.closed(isClosed)
	done(isClosed)
}
