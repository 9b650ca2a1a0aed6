// The runtime of a client: its sessions, their timer, and the end of the client.

package leasehold

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
	"leasehold.dev/sdk/internal/clock"
)

const (
	// streamLeasesMax is the number of leases and pending acquires that the broker accepts on one stream.
	streamLeasesMax = 1_000
	// tickInterval is the interval at which deadlines are checked while there are leases or pending acquires. Timers alone
	// are not enough, because none runs through a suspend.
	tickInterval = 50 * time.Millisecond
	// closeTimeout is the longest time for which a close waits for brokers.
	closeTimeout = 2 * time.Second
)

// clientRuntime is the state that a client shares with its leases.
type clientRuntime struct {
	endpoints *brokerEndpoints
	logger    *slog.Logger
	metrics   metrics

	// mu guards all fields below and all sessions. No code waits for the network while it holds mu.
	mu             sync.Mutex
	sessions       []*session
	isTimerRunning bool
	isClosed       bool
	// allSessionsEnded is closed when all sessions have ended. remainingSessions is the number of sessions that have not
	// ended yet.
	allSessionsEnded  chan struct{}
	remainingSessions int
	isUnconfirmed     bool
}

func (r *clientRuntime) log() *slog.Logger {
	if r.logger != nil {
		return r.logger
	}
	return slog.Default()
}

// startTimer starts the timer, unless it runs. The timer runs while a session is not idle.
func (r *clientRuntime) startTimer() {
	if r.isTimerRunning {
		return
	}
	r.isTimerRunning = true
	go func() {
		ticker := time.NewTicker(tickInterval)
		defer ticker.Stop()
		for r.onTick() {
			<-ticker.C
		}
	}()
}

func (r *clientRuntime) onTick() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isTimerRunning = false
	for _, session := range r.sessions {
		session.onTick(clock.Now())
		r.isTimerRunning = r.isTimerRunning || !session.isIdle()
	}
	return r.isTimerRunning
}

// sessionWithCapacity returns a session with room for this number of additional leases or pending acquires.
func (r *clientRuntime) sessionWithCapacity(additional int) *session {
	for _, session := range r.sessions {
		if session.load()+additional <= streamLeasesMax {
			return session
		}
	}
	session := newSession(r)
	r.sessions = append(r.sessions, session)
	return session
}

// acquire sends an acquire in a session. The returned function cancels it.
func (r *clientRuntime) acquire(command *acquireCommand) (cancel func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isClosed {
		command.result <- acquireResult{err: newError(ErrClosed, "")}
		return func() {}
	}
	session := r.sessionWithCapacity(1)
	if command.under != nil {
		session = command.under.session
	}
	session.pending.add(command)
	return func() { session.runtime.cancel(session, command) }
}

// cancel cancels an acquire whose caller has left, and releases the locks if it was granted already.
func (r *clientRuntime) cancel(session *session, command *acquireCommand) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case result := <-command.result:
		if result.handle != nil {
			result.handle.release()
		}
	default:
		session.pending.cancel(command.params.requestID)
	}
}

// connect waits until a session has a stream, and returns the session.
func (r *clientRuntime) connect(ctx context.Context) (*session, error) {
	r.mu.Lock()
	if r.isClosed {
		r.mu.Unlock()
		return nil, newError(ErrClosed, "")
	}
	session := r.sessionWithCapacity(0)
	connected := session.failover.waitForConnection()
	r.mu.Unlock()
	select {
	case err := <-connected:
		return session, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// getLock returns the state of a lock, or nil if the broker has no record of the lock.
func (r *clientRuntime) getLock(ctx context.Context, lock lockName) (state *pb.Lock, err error) {
	err = r.unaryCall(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		request := &pb.GetLockRequest{Namespace: lock.namespace, Name: lock.name}
		response, err := pb.NewInspectionServiceClient(conn).GetLock(ctx, request)
		if status.Code(err) == codes.NotFound {
			return nil
		}
		state = response.GetLock()
		return err
	})
	return state, err
}

// setLimit sets the limit of a semaphore, or removes it with 0, and returns the previous limit.
func (r *clientRuntime) setLimit(ctx context.Context, lock lockName, limit int) (previous int, err error) {
	err = r.unaryCall(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		request := &pb.SetLockLimitRequest{Lock: lock.proto(), Limit: clampToInt32(limit)}
		response, err := pb.NewLockServiceClient(conn).SetLockLimit(ctx, request)
		previous = int(response.GetPreviousLimit())
		return err
	})
	return previous, err
}

// unaryCall sends a unary call over the connection of a session, once, and converts its error. The context of the call
// has the credential and ends after callTimeout.
func (r *clientRuntime) unaryCall(ctx context.Context, send func(context.Context, *grpc.ClientConn) error) error {
	session, err := r.connect(ctx)
	if err != nil {
		return unavailable(err)
	}
	r.mu.Lock()
	connection := session.connection
	notConnected := newError(ErrUnavailable, session.failover.unavailableReason())
	r.mu.Unlock()
	if connection == nil {
		return notConnected
	}
	credential, err := r.endpoints.credentials.authorization()
	if err != nil {
		return newError(ErrUnavailable, err.Error())
	}
	callCtx, cancel := context.WithTimeout(withCredential(ctx, credential), callTimeout)
	defer cancel()
	err = send(callCtx, connection.conn)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	refused := refusedFromStatus(err)
	if isRetryable(refused) && refused.GetReason() == pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return newError(ErrUnavailable, refused.GetMessage())
	}
	return errorFromRefused(refused)
}

// unavailable converts an error of connect into the error of a call that needs a broker.
func unavailable(err error) error {
	var connectErr *Error
	switch {
	case !errors.As(err, &connectErr):
	case connectErr.Err == ErrUnreachable:
		return newError(ErrUnavailable, connectErr.Message)
	case connectErr.Err == ErrCredentialRefused:
		return newError(ErrUnauthenticated, connectErr.Message)
	}
	return err
}

// close cancels all pending acquires, releases all leases and closes the sessions. It returns false if a broker did not
// confirm that.
func (r *clientRuntime) close() bool {
	r.mu.Lock()
	if !r.isClosed {
		// A later call must not create another session, because that session would never be closed.
		r.isClosed = true
		r.allSessionsEnded = make(chan struct{})
		r.remainingSessions = len(r.sessions) + 1
		deadline := clock.Now() + closeTimeout
		for _, session := range r.sessions {
			session.close(deadline, r.onSessionEnded)
		}
		r.startTimer()
		r.onSessionEnded(true)
	}
	r.mu.Unlock()
	<-r.allSessionsEnded
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.isUnconfirmed
}

func (r *clientRuntime) onSessionEnded(isConfirmed bool) {
	r.isUnconfirmed = r.isUnconfirmed || !isConfirmed
	r.remainingSessions--
	if r.remainingSessions == 0 {
		close(r.allSessionsEnded)
	}
}
