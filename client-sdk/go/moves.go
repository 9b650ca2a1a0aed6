// From one broker to the next: after a break, when asked to, when nothing answers. A stream that still works is left
// only once another one is open.

package leasehold

import (
	"math/rand/v2"
	"strings"
	"time"

	"leasehold.dev/sdk/internal/clock"
)

const (
	// moveJitter: clients of a broker that dies don't all come to the next one at the same moment.
	moveJitter = 50 * time.Millisecond
	// settled: a stream that lived for so long was a success.
	settled      = time.Second
	movePauseMin = 100 * time.Millisecond
	movePauseMax = time.Second
)

// jittered is between half of it and all of it.
func jittered(length time.Duration) time.Duration {
	return length/2 + rand.N(length/2)
}

// moves is the way to another broker.
type moves struct {
	keeper *keeper
	// at is the endpoint of the present stream, or the one that was tried last.
	at      int
	isDue   bool
	due     time.Duration
	opening *link
	// failures are endpoints that were tried one after the other in vain.
	failures int
	// denials are endpoints that did not accept the credential, one after the other.
	denials  int
	openedAt time.Duration
	why      string
	// first are who waits for the first stream.
	first  []*firstLook
	isOver bool
}

// firstLook is somebody who waits for a stream.
type firstLook struct {
	// told has room for one: why there is none once every endpoint was tried.
	told chan error
	whys []string
}

func newMoves(k *keeper) moves {
	return moves{keeper: k, at: -1, openedAt: clock.Now(), why: "not connected yet"}
}

// isSettled says whether nothing is planned.
func (m *moves) isSettled() bool { return !m.isDue }

// whyNot is why there is no stream.
func (m *moves) whyNot() string { return "no broker can be reached: " + m.why }

// waitFirst tells when there is a stream, or why there is none once every endpoint was tried.
func (m *moves) waitFirst() <-chan error {
	told := make(chan error, 1)
	switch {
	case m.isOver:
		told <- failed(ErrClosed, "")
	case m.keeper.link != nil:
		told <- nil
	default:
		m.first = append(m.first, &firstLook{told: told})
	}
	return told
}

// leave goes to another broker after a while.
func (m *moves) leave(delay time.Duration) {
	now := clock.Now()
	if m.isSettled() {
		m.begin(now)
	}
	at := now + delay
	if m.isSettled() || at < m.due {
		m.isDue, m.due = true, at
	}
	m.keeper.core.watch()
	m.openIfDue(now)
}

// broken notes that the stream is gone.
func (m *moves) broken() {
	m.why = "the stream broke"
	m.begin(clock.Now())
	m.failures++
	m.leave(max(jittered(moveJitter), m.pause()))
}

// tick looks at the time.
func (m *moves) tick(now time.Duration) {
	if opening := m.opening; opening != nil && now >= opening.begunAt+openLimit {
		opening.cut()
		m.failed(opening, opening.endpoint.name+": no answer within "+openLimit.String(), false)
	}
	m.openIfDue(now)
}

// stop goes nowhere any more.
func (m *moves) stop() {
	m.isOver, m.isDue = true, false
	if m.opening != nil {
		m.opening.cut()
		m.opening = nil
	}
	m.tell(failed(ErrClosed, ""))
}

// begin: what failed before the present stream counts no more, if that was a success.
func (m *moves) begin(now time.Duration) {
	if now > m.openedAt+settled {
		m.failures = 0
	}
}

func (m *moves) openIfDue(now time.Duration) {
	if m.isOver || m.opening != nil || !m.isDue || now < m.due {
		return
	}
	m.at++
	m.opening = newLink(m.keeper.core.brokers, m.at)
	go m.opening.run(m.keeper)
}

func (m *moves) opened(l *link) {
	if l != m.opening {
		l.cut()
		return
	}
	m.opening, m.isDue = nil, false
	m.denials = 0
	m.openedAt = clock.Now()
	m.keeper.take(l)
	m.tell(nil)
}

func (m *moves) failed(l *link, why string, isDenied bool) {
	if l != m.opening {
		return
	}
	m.opening = nil
	isDenied = isDenied && l.showsNewest()
	if isDenied {
		m.keeper.core.log().Warn("a broker does not accept the credential", "why", why)
		m.denials++
	} else {
		m.keeper.core.log().Warn("a broker does not answer", "why", why)
		m.denials = 0
	}
	m.failures++
	m.why = why
	all := len(m.keeper.core.brokers.endpoints)
	if m.keeper.link == nil && m.denials >= all {
		m.keeper.waits.deny()
	}
	m.due = clock.Now() + m.pause()
	first := m.first
	m.first = nil
	for _, one := range first {
		one.whys = append(one.whys, why)
		whys := strings.Join(one.whys, "; ")
		switch {
		case len(one.whys) < all:
			m.first = append(m.first, one)
		case m.denials >= all:
			one.told <- failed(ErrCredentialRefused, ErrCredentialRefused.Error()+": "+whys)
		default:
			one.told <- failed(ErrUnreachable, "no broker answers: "+whys)
		}
	}
}

func (m *moves) tell(err error) {
	for _, one := range m.first {
		one.told <- err
	}
	m.first = nil
}

// pause: every endpoint is tried at once the first time, then all more and more slowly.
func (m *moves) pause() time.Duration {
	rounds := m.failures / len(m.keeper.core.brokers.endpoints)
	if rounds == 0 {
		return 0
	}
	return jittered(min(movePauseMin<<min(rounds-1, 8), movePauseMax))
}
