// Sessions: each keeps the leases and pending acquires of one stream alive, across brokers.

package leasehold

import (
	"time"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
	"leasehold.dev/sdk/internal/clock"
)

// session keeps leases and pending acquires across streams. The client's lock guards it and its parts.
type session struct {
	runtime    *clientRuntime
	connection *streamConnection
	failover   failover
	pending    pendingAcquires
	leases     leases
	releases   releases
	// retries is the rejected calls to send again later.
	retries             []retry
	isClosed            bool
	onClosed            func(isConfirmed bool)
	closeDeadline       time.Duration
	closeStreamDeadline time.Duration
	isStreamClosed      bool
}

type retry struct {
	at      time.Duration
	subject callSubject
}

func newSession(runtime *clientRuntime) *session {
	s := &session{runtime: runtime}
	s.failover = newFailover(s)
	s.pending = pendingAcquires{session: s, all: map[string]*pendingAcquire{}}
	s.leases = leases{session: s, all: map[string]*heldLease{}, lost: map[string]*heldLease{}}
	s.releases = releases{session: s}
	s.failover.start(0)
	return s
}

// load returns the number of leases and pending acquires.
func (s *session) load() int {
	return len(s.pending.all) + len(s.leases.all)
}

// isIdle returns true if the session has no deadlines to check.
func (s *session) isIdle() bool {
	return s.load() == 0 && s.failover.isIdle() && s.onClosed == nil
}

// retryLater schedules a call to be sent again after the delay.
func (s *session) retryLater(delay time.Duration, subject callSubject) {
	s.retries = append(s.retries, retry{clock.Now() + delay, subject})
}

// onMessage handles a message of the broker. It ignores messages of a replaced stream.
func (s *session) onMessage(c *streamConnection, response *pb.HoldResponse) {
	if c != s.connection {
		return
	}
	c.recordMessage()
	switch message := response.GetMessage().(type) {
	case *pb.HoldResponse_Ack:
		s.leases.onHeartbeatAck(message.Ack)
	case *pb.HoldResponse_Granted:
		s.pending.onGranted(message.Granted)
	case *pb.HoldResponse_Released:
		s.onReleased(message.Released)
	case *pb.HoldResponse_Queued:
		s.pending.onQueued(message.Queued)
	case *pb.HoldResponse_Refused:
		s.onRefused(message.Refused)
	case *pb.HoldResponse_Attached:
		s.leases.onAttached(message.Attached)
	case *pb.HoldResponse_Ended:
		s.leases.onEnded(message.Ended.GetLeaseId(), lossFromEnded(message.Ended))
	case *pb.HoldResponse_Reconnect:
		s.failover.start(durationOf(message.Reconnect.GetDelay()))
	case *pb.HoldResponse_Done:
		if call, _ := c.complete(message.Done.GetCallId()); call.subject.kind == callCredential {
			c.onCredentialAccepted()
		}
	case *pb.HoldResponse_ReleaseRequested:
		requested := message.ReleaseRequested
		s.runtime.log().Info("the broker requests the release of a lease", "lease_id", requested.GetLeaseId(),
			"message", requested.GetMessage())
	}
	// Unknown messages come from newer brokers and are ignored.
}

func (s *session) onReleased(released *pb.Released) {
	call, _ := s.connection.complete(released.GetCallId())
	switch call.subject.kind {
	case callRelease:
		s.releases.onReleased(call.subject.key)
	case callPartialRelease:
		s.releases.onPartialRelease(call.subject, released.GetHoldCount())
	}
}

func (s *session) onRefused(refused *pb.Refused) {
	call, _ := s.connection.complete(refused.GetCallId())
	switch call.subject.kind {
	case callAcquire:
		s.pending.onRefused(call.subject.key, refused)
	case callAttach:
		s.leases.onAttachRefused(call.subject.key, refused)
	case callRelease:
		s.releases.onRefused(call.subject.key, refused)
	case callPartialRelease:
		s.releases.onPartialReleaseRefused(call.subject, refused)
	case callCredential:
		s.onCredentialRejected(refused.GetMessage())
	}
}

// onTick performs all actions that are due.
func (s *session) onTick(now time.Duration) {
	if s.onClosed != nil {
		s.closeStream()
		if now >= s.closeDeadline {
			s.end(false)
		}
		return
	}
	s.leases.checkDeadlines(now)
	s.pending.expirePending(now)
	s.leases.checkSilence(now)
	s.leases.heartbeatIfDue(now)
	s.refreshCredential(now)
	s.checkLiveness(now)
	s.sendRetries(now)
	s.failover.onTick(now)
}

// checkLiveness sends a health check when the broker has sent nothing for livenessTimeout. If the check fails and
// nothing was received in the meantime, it closes the stream.
func (s *session) checkLiveness(now time.Duration) {
	c := s.connection
	if c == nil || c.isHealthCheckRunning || s.load() == 0 || now < c.lastMessageAt+livenessTimeout {
		return
	}
	c.isHealthCheckRunning = true
	go func() {
		isHealthy := c.isHealthy()
		s.runtime.mu.Lock()
		defer s.runtime.mu.Unlock()
		c.isHealthCheckRunning = false
		switch {
		case isHealthy:
			c.lastMessageAt = clock.Now()
		case c.lastMessageAt < now:
			c.cancel()
			s.onDisconnect(c)
		}
	}()
}

func (s *session) sendRetries(now time.Duration) {
	if s.connection == nil {
		return
	}
	var ready, later []retry
	for _, retry := range s.retries {
		if retry.at <= now {
			ready = append(ready, retry)
		} else {
			later = append(later, retry)
		}
	}
	s.retries = later
	for _, retry := range ready {
		switch retry.subject.kind {
		case callAcquire:
			s.pending.send(retry.subject.key)
		case callAttach:
			s.leases.attach(retry.subject.key)
		case callRelease:
			s.releases.send(retry.subject.key)
		case callPartialRelease:
			s.releases.sendPartialRelease(retry.subject.key, retry.subject.releaseNumber)
		}
	}
}

// close releases all leases and closes the session, at the latest at the deadline. It then calls onClosed with true if
// the stream ended before that time, so that the broker has received the releases.
func (s *session) close(deadline time.Duration, onClosed func(isConfirmed bool)) {
	s.isClosed = true
	isEmpty := s.load() == 0
	s.releases.releaseAllLost()
	for _, acquire := range s.pending.all {
		acquire.complete(acquireResult{err: newError(ErrClosed, "")})
	}
	clear(s.pending.all)
	for leaseID := range s.leases.all {
		s.leases.close(leaseID)
	}
	s.failover.stop()
	now := clock.Now()
	s.onClosed, s.closeDeadline, s.closeStreamDeadline = onClosed, deadline, now+(deadline-now)/2
	if s.connection == nil {
		s.end(isEmpty)
		return
	}
	s.closeStream()
}

// closeStream closes the stream once the session is closing and no unary release is in flight, or after half of the
// shutdown time.
func (s *session) closeStream() {
	isReady := s.releases.unaryCalls == 0 || clock.Now() >= s.closeStreamDeadline
	if s.onClosed != nil && s.connection != nil && !s.isStreamClosed && isReady {
		s.isStreamClosed = true
		s.connection.close()
	}
}

// onDisconnect handles the end of a stream. A closing session ends; others fail over.
func (s *session) onDisconnect(c *streamConnection) {
	if c != s.connection {
		return
	}
	s.connection = nil
	if s.onClosed != nil {
		s.end(true)
		return
	}
	s.runtime.log().Debug("lease stream ended", "endpoint", c.endpoint.name)
	s.onStreamLost()
	s.failover.onDisconnect()
}

// switchConnection replaces the stream, and sends all leases and pending acquires on the new one. The new stream
// repeats what the old one would still report.
func (s *session) switchConnection(c *streamConnection) {
	previous := s.connection
	s.connection = c
	c.recordMessage()
	if previous != nil {
		previous.cancel()
	}
	s.onStreamLost()
	s.leases.resumeAll()
	s.pending.resumeAll()
}

func (s *session) onStreamLost() {
	s.retries = nil
	s.pending.markAllUnsent()
	s.leases.onStreamLost()
}

func (s *session) end(isConfirmed bool) {
	onClosed, c := s.onClosed, s.connection
	s.onClosed, s.connection = nil, nil
	if c != nil {
		c.cancel()
	}
	s.releases.completeClosing(isConfirmed)
	onClosed(isConfirmed)
}
