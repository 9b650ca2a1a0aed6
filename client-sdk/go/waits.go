// Calls without an answer: sent again on every stream until there is one.

package leasehold

import (
	"errors"
	"time"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
	"leasehold.dev/sdk/internal/clock"
)

const (
	// repeatLimit is how much longer than it may wait a call of unknown outcome is repeated.
	repeatLimit = 5 * time.Second
	// callPause is how soon a call is repeated that was refused for now.
	callPause = 200 * time.Millisecond
	// storePause is how soon another broker is tried when this one does not reach its store.
	storePause = 2 * time.Second
	// beatWaiting is the longest pause between heartbeats while a call waits.
	beatWaiting = 2 * time.Second
	// ttlMin is the shortest ttl that a broker grants.
	ttlMin = time.Second
)

// wait is a call without an answer.
type wait struct {
	call  call
	under *grip
	// asked is who waits for the answer; nil: gone.
	asked *ask
	isTry bool
	// until is how long it may wait in line.
	until        time.Duration
	attachNumber int32
	// callID is as which it was sent last; 0: not on this stream.
	callID int64
	// why it has no answer yet.
	why error
}

func newWait(asked *ask) *wait {
	until := clock.Now() + asked.wait
	return &wait{call: asked.call, under: asked.under, asked: asked, isTry: asked.wait <= 0, until: until}
}

// interval is how often heartbeats are to be sent while it waits.
func (w *wait) interval() time.Duration {
	if w.call.ttl == nil {
		return beatWaiting
	}
	return min(max(*w.call.ttl, ttlMin)/3, beatWaiting)
}

// tell answers, if the caller is there still. What it has got otherwise is given back.
func (w *wait) tell(what answer) {
	switch {
	case w.asked != nil:
		w.asked.answer <- what
		w.asked = nil
	case what.grip != nil:
		what.grip.giveBack()
	}
}

// refusal is why it has got nothing.
func (w *wait) refusal(said *pb.Refused) error {
	err := refusalOf(said)
	var busy *Error
	if errors.Is(err, ErrHeld) && errors.As(err, &busy) && !w.isTry {
		// It was late when it was repeated, and so was asked without waiting: to its caller it has waited.
		busy.Err = ErrWaitTimeout
	}
	return err
}

// waits are the calls of one stream, by request.
type waits struct {
	keeper *keeper
	all    map[string]*wait
}

// ask takes on one more call.
func (w *waits) ask(asked *ask) {
	if w.keeper.isOver {
		asked.answer <- answer{err: failed(ErrClosed, "")}
		return
	}
	w.all[asked.call.requestID] = newWait(asked)
	w.keeper.core.watch()
	w.send(asked.call.requestID)
}

// send sends a call, if it can be sent now. Under a lease that is only once that is on this stream.
func (w *waits) send(requestID string) {
	link, wait := w.keeper.link, w.all[requestID]
	if link == nil || wait == nil {
		return
	}
	var under *pb.Lease
	if wait.under == nil {
		wait.attachNumber++
	} else {
		owned := w.keeper.leases.all[wait.under.leaseID]
		if owned == nil || owned.release != nil {
			loss := wait.under.trust.loss()
			if loss == nil {
				loss = &LeaseLostError{Reason: LostReleased}
			}
			delete(w.all, requestID)
			wait.tell(answer{err: loss})
			return
		}
		if !owned.isHere {
			return
		}
		under, wait.attachNumber = owned.lease, owned.attachNumber
	}
	// A call that is late already still asks once, without waiting.
	left := max(0, wait.until-clock.Now())
	wait.callID = link.next()
	message := wait.call.message(sending{wait.callID, wait.attachNumber}, left, under)
	link.call(wait.callID, about{kind: kindAcquire, key: requestID}, message)
}

// sendUnder sends what could not be sent before, since its lease was not here. If that is over now, so are they.
func (w *waits) sendUnder(leaseID string) {
	for requestID, wait := range w.all {
		if wait.under != nil && wait.under.leaseID == leaseID && wait.callID == 0 {
			w.send(requestID)
		}
	}
}

// cancel: the caller is gone. The broker answers with a refusal, or with a grant that is given back.
func (w *waits) cancel(requestID string) {
	wait := w.all[requestID]
	if wait == nil {
		w.keeper.leases.cancelUnborn(requestID)
		return
	}
	wait.asked = nil
	if w.keeper.link == nil || wait.callID == 0 {
		delete(w.all, requestID)
		return
	}
	cancel := &pb.CancelAcquire{CallId: wait.callID}
	w.keeper.link.out.put(&pb.HoldRequest{Message: &pb.HoldRequest_Cancel{Cancel: cancel}})
}

// queued is where a call stands.
func (w *waits) queued(said *pb.Queued) {
	call := w.keeper.link.calls[said.GetCallId()]
	if wait := w.all[call.about.key]; call.about.kind == kindAcquire && wait != nil && wait.asked != nil {
		wait.asked.tell(Place{
			Position:    int(said.GetPosition()),
			QueueLength: int(said.GetQueueLength()),
			Holders:     holdersOf(said.GetHolders()),
		})
	}
}

// granted: a call has got its locks.
func (w *waits) granted(said *pb.Granted) {
	call, _ := w.keeper.link.answered(said.GetCallId())
	wait := w.all[call.about.key]
	if call.about.kind != kindAcquire || wait == nil {
		// An earlier sending of the call was answered, too; its holder decides.
		return
	}
	delete(w.all, call.about.key)
	if wait.under != nil {
		w.keeper.leases.enter(said.GetLease(), wait)
		return
	}
	// The store was asked after both; after a pause the heartbeat is the older one.
	sent := call.at
	if beat, ok := w.keeper.link.beatSent(said.GetAsOfSequence()); ok {
		sent = max(sent, beat)
	}
	w.keeper.leases.own(said.GetLease(), wait, sent)
}

// refused: a call has got nothing, for good or for now.
func (w *waits) refused(requestID string, said *pb.Refused) {
	wait := w.all[requestID]
	if wait == nil || wait.callID != said.GetCallId() {
		return
	}
	wait.callID = 0
	if wait.asked == nil || !isOpen(said) {
		delete(w.all, requestID)
		wait.tell(answer{err: wait.refusal(said)})
		return
	}
	wait.why = refusalOf(said)
	w.keeper.putOff(jittered(callPause), about{kind: kindAcquire, key: requestID})
	// A broker that goes away, or does not reach its store, is not the one to ask again.
	switch said.GetReason() {
	case pb.ErrorReason_ERROR_REASON_DRAINING:
		w.keeper.moves.leave(0)
	case pb.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE:
		if len(w.keeper.core.brokers.endpoints) > 1 {
			w.keeper.moves.leave(jittered(storePause))
		}
	}
}

// watch ends the calls that nobody has answered for too long.
func (w *waits) watch(now time.Duration) {
	for requestID, wait := range w.all {
		if wait.asked == nil || now-repeatLimit < wait.until {
			continue
		}
		why := wait.why
		switch {
		case why != nil:
		case w.keeper.link == nil:
			why = failed(ErrUnavailable, w.keeper.moves.whyNot())
		default:
			why = failed(ErrUnavailable, "the broker does not answer")
		}
		wait.tell(answer{err: why})
		w.cancel(requestID)
	}
}

// deny: no broker accepts the credential. Calls are told so instead of being sent on and on.
func (w *waits) deny() {
	for _, wait := range w.all {
		wait.tell(answer{err: failed(ErrUnauthenticated, w.keeper.moves.whyNot())})
	}
	clear(w.all)
}

// offStream: the stream is gone, and with it every call of somebody who is gone, too: the broker gives up what does
// not come again.
func (w *waits) offStream() {
	for requestID, wait := range w.all {
		wait.callID = 0
		if wait.asked == nil {
			delete(w.all, requestID)
		}
	}
}

// takeUp brings every call to a new stream.
func (w *waits) takeUp() {
	for requestID := range w.all {
		w.send(requestID)
	}
}
