// Failover to another broker: after the stream broke, on request of the broker, or without responses. A working stream
// is replaced only after another one was opened.

package leasehold

import (
	"math/rand/v2"
	"strings"
	"time"

	"leasehold.dev/sdk/internal/clock"
)

const (
	// jitterMax is the upper bound of a random delay, so that clients of a failed broker do not reconnect all at once.
	jitterMax = 50 * time.Millisecond
	// stableAfter is the time after which a stream counts as successful and resets the number of failures.
	stableAfter = time.Second
	backoffMin  = 100 * time.Millisecond
	backoffMax  = time.Second
)

// jittered returns a random time between half of the duration and the duration.
func jittered(duration time.Duration) time.Duration {
	return duration/2 + rand.N(duration/2)
}

// failover is the failover state of a session.
type failover struct {
	session *session
	// endpointIndex, modulo the number of endpoints, is the index of the endpoint of the current stream, or of the
	// endpoint that was tried last.
	endpointIndex int
	isScheduled   bool
	openAt        time.Duration
	opening       *streamConnection
	// failures is the number of consecutive failures to open a stream or to keep it open.
	failures int
	// credentialRejections is the number of consecutive endpoints that rejected the credential.
	credentialRejections int
	openedAt             time.Duration
	reason               string
	// connectWaiters is the callers that wait for the first stream.
	connectWaiters []*connectWaiter
	isStopped      bool
}

// connectWaiter is a caller that waits for a stream.
type connectWaiter struct {
	// result has capacity 1. It receives nil once a stream is open, or an error once every endpoint was tried.
	result   chan error
	failures []string
}

func newFailover(s *session) failover {
	return failover{session: s, endpointIndex: -1, openedAt: clock.Now(), reason: "not connected yet"}
}

// isIdle returns true if no failover is planned.
func (f *failover) isIdle() bool { return !f.isScheduled }

// unavailableReason returns the reason for which there is no stream.
func (f *failover) unavailableReason() string { return "no broker can be reached: " + f.reason }

// waitForConnection returns a channel that receives nil once there is a stream, or an error once every endpoint was
// tried.
func (f *failover) waitForConnection() <-chan error {
	result := make(chan error, 1)
	switch {
	case f.isStopped:
		result <- newError(ErrClosed, "")
	case f.session.connection != nil:
		result <- nil
	default:
		f.connectWaiters = append(f.connectWaiters, &connectWaiter{result: result})
	}
	return result
}

// start schedules the failover to another broker after the delay. An earlier failover that is already scheduled
// remains.
func (f *failover) start(delay time.Duration) {
	now := clock.Now()
	if f.isIdle() {
		f.resetFailuresIfStable(now)
	}
	at := now + delay
	if f.isIdle() || at < f.openAt {
		f.isScheduled, f.openAt = true, at
	}
	f.session.runtime.startTimer()
	f.pollConnect(now)
}

// onDisconnect schedules a failover after the end of the stream.
func (f *failover) onDisconnect() {
	f.reason = "the lease stream ended"
	f.resetFailuresIfStable(clock.Now())
	f.failures++
	f.start(max(jittered(jitterMax), f.backoff()))
}

// onTick gives up a stream that did not open within openTimeout, and starts a failover that is due.
func (f *failover) onTick(now time.Duration) {
	if opening := f.opening; opening != nil && now >= opening.openStartedAt+openTimeout {
		opening.cancel()
		f.onOpenFailed(opening, opening.endpoint.name+": no answer within "+openTimeout.String(), false)
	}
	f.pollConnect(now)
}

// stop ends all failovers and fails the callers that wait for a stream.
func (f *failover) stop() {
	f.isStopped, f.isScheduled = true, false
	if f.opening != nil {
		f.opening.cancel()
		f.opening = nil
	}
	f.notifyConnectWaiters(newError(ErrClosed, ""))
}

// resetFailuresIfStable resets the number of failures if the current stream was successful.
func (f *failover) resetFailuresIfStable(now time.Duration) {
	if now > f.openedAt+stableAfter {
		f.failures = 0
	}
}

func (f *failover) pollConnect(now time.Duration) {
	if f.isStopped || f.opening != nil || !f.isScheduled || now < f.openAt {
		return
	}
	f.endpointIndex++
	f.opening = newStreamConnection(f.session.runtime.endpoints, f.endpointIndex)
	go f.opening.run(f.session)
}

func (f *failover) onOpened(c *streamConnection) {
	if c != f.opening {
		c.cancel()
		return
	}
	f.opening, f.isScheduled = nil, false
	f.credentialRejections = 0
	f.openedAt = clock.Now()
	f.session.switchConnection(c)
	f.notifyConnectWaiters(nil)
}

func (f *failover) onOpenFailed(c *streamConnection, reason string, isCredentialRejected bool) {
	if c != f.opening {
		return
	}
	f.opening = nil
	isCredentialRejected = isCredentialRejected && c.isCredentialCurrent()
	if isCredentialRejected {
		f.session.runtime.log().Warn("a broker rejected the credential", "why", reason)
		f.credentialRejections++
	} else {
		f.session.runtime.log().Warn("connecting to a broker failed", "why", reason)
		f.credentialRejections = 0
	}
	f.failures++
	f.reason = reason
	endpointCount := len(f.session.runtime.endpoints.list)
	if f.session.connection == nil && f.credentialRejections >= endpointCount {
		f.session.pending.failAllUnauthenticated()
	}
	f.openAt = clock.Now() + f.backoff()
	waiters := f.connectWaiters
	f.connectWaiters = nil
	for _, waiter := range waiters {
		waiter.failures = append(waiter.failures, reason)
		failures := strings.Join(waiter.failures, "; ")
		switch {
		case len(waiter.failures) < endpointCount:
			f.connectWaiters = append(f.connectWaiters, waiter)
		case f.credentialRejections >= endpointCount:
			waiter.result <- newError(ErrCredentialRefused, ErrCredentialRefused.Error()+": "+failures)
		default:
			waiter.result <- newError(ErrUnreachable, "no broker answers: "+failures)
		}
	}
}

func (f *failover) notifyConnectWaiters(err error) {
	for _, waiter := range f.connectWaiters {
		waiter.result <- err
	}
	f.connectWaiters = nil
}

// backoff returns the backoff before the next endpoint. In the first round each endpoint is tried at once, in later
// rounds after a random time whose upper bound grows exponentially up to backoffMax.
func (f *failover) backoff() time.Duration {
	rounds := f.failures / len(f.session.runtime.endpoints.list)
	if rounds == 0 {
		return 0
	}
	return jittered(min(backoffMin<<min(rounds-1, 8), backoffMax))
}
