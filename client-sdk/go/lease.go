// A lock that is held.

package leasehold

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Lease is a lock that is held, or several under one lease.
//
// The client sends heartbeats for it until it is released or lost. Forgetting it releases nothing: call Release, or
// close the client.
//
// Nothing can stop a goroutine from outside: call Check before each step that needs the lock, or have the work listen
// to Context. Its methods may be called by any number of goroutines.
type Lease struct {
	grip   *grip
	ctx    *leaseContext
	cancel context.CancelCauseFunc
	// forget ends the listening to the loss.
	forget func() bool
}

func newLease(ctx context.Context, g *grip, onLost func(*Lease)) *Lease {
	ctx, cancel := context.WithCancelCause(ctx)
	l := &Lease{grip: g, cancel: cancel}
	l.ctx = &leaseContext{Context: ctx, lease: l}
	ready := make(chan struct{})
	defer close(ready)
	l.forget = context.AfterFunc(g.trust.over, func() {
		<-ready
		loss := g.trust.loss()
		cancel(loss)
		g.keeper.core.metrics.held(ctx, g, true)
		if onLost != nil {
			onLost(l)
		}
	})
	return l
}

// ID is the public identifier of the lease: safe to log and to show.
func (l *Lease) ID() string { return l.grip.leaseID }

// FencingToken is to be sent with every write to what the lock protects, which refuses smaller ones. Of the first
// lock, if there are several. Positive and below 2^53.
func (l *Lease) FencingToken() int64 {
	if len(l.grip.locks) == 0 {
		return 0
	}
	return l.grip.locks[0].token
}

// FencingTokenOf is the fencing token of this lock, if the lease was taken for it. Of a target only name and
// namespace count.
func (l *Lease) FencingTokenOf(lock Target) (token int64, ok bool) {
	for _, held := range l.grip.locks {
		if held.lock == lock.lock() {
			return held.token, true
		}
	}
	return 0, false
}

// Locks are the locks, as namespace/name.
func (l *Lease) Locks() []string {
	locks := make([]string, len(l.grip.locks))
	for i, held := range l.grip.locks {
		locks[i] = held.lock.String()
	}
	return locks
}

// IsValid says whether the lock can be trusted at this moment, by the clock. Once false it stays so.
func (l *Lease) IsValid() bool { return l.loss() == nil }

// Remaining is how long it can be trusted if no heartbeat is confirmed from now on.
func (l *Lease) Remaining() time.Duration {
	if l.loss() != nil {
		return 0
	}
	return l.grip.trust.remaining()
}

// LostReason is why the lock is not held any more; 0 while it is.
func (l *Lease) LostReason() LostReason {
	if loss := l.loss(); loss != nil {
		return loss.Reason
	}
	return 0
}

// Check is nil while the lock is held, and a [*LeaseLostError] from then on; for a step that must not be done without
// it.
func (l *Lease) Check() error {
	if loss := l.loss(); loss != nil {
		return loss
	}
	return nil
}

// Context is the one that was given to the acquire, ended besides when the lock is not held any more: its
// [context.Cause] is then a [*LeaseLostError]. Its Err looks at the clock; its Done is closed at most 50 ms after the
// loss.
//
// To limit only the wait for the lock use [WithWait]: a time limit in the context of the acquire is one for the work,
// too.
func (l *Lease) Context() context.Context { return l.ctx }

// Release gives the lock back, and waits until the broker has confirmed it. A lease that was made under another one,
// and that one, give back only what their own acquire took. A repeated call does nothing and returns nil.
//
// The lock is given back also if ctx has ended or ends meanwhile; only the confirmation is not waited for then, and
// the error is that of ctx unless the confirmation is there already. So `defer lease.Release(ctx)` always releases.
//
// It fails with a [*LeaseLostError] if the lock was lost before: what it guarded may have overlapped with another
// holder's work. With [ErrUnconfirmed] if no broker could be reached.
func (l *Lease) Release(ctx context.Context) error {
	core := l.grip.keeper.core
	// From here on whoever releases is told of a loss, and nobody else.
	isUntold := l.forget()
	loss := l.grip.trust.loss()
	core.mu.Lock()
	done := l.grip.giveBack()
	core.mu.Unlock()
	if done == nil {
		return nil
	}
	if isUntold {
		core.metrics.held(ctx, l.grip, loss != nil)
	}
	if loss != nil {
		l.cancel(loss)
		return loss
	}
	l.cancel(&LeaseLostError{Reason: LostReleased})
	select {
	case err := <-done:
		return err
	default:
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("leasehold: the release goes on without a confirmation: %w", ctx.Err())
	}
}

// String shows nothing that is secret.
func (l *Lease) String() string {
	state := "valid"
	if loss := l.loss(); loss != nil {
		state = loss.Reason.String()
	}
	locks := strings.Join(l.Locks(), ", ")
	return fmt.Sprintf("lease %s of %s (fencing token %d): %s", l.ID(), locks, l.FencingToken(), state)
}

// GoString is String.
func (l *Lease) GoString() string { return l.String() }

// loss is why it is not held any more, if it is not.
func (l *Lease) loss() *LeaseLostError {
	if loss := l.grip.trust.loss(); loss != nil {
		return loss
	}
	if l.grip.isGivenBack.Load() {
		return &LeaseLostError{Reason: LostReleased}
	}
	return nil
}
