// Leases: handles of held locks.

package leasehold

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Lease is a handle of a held lock, or of several locks under one lease.
//
// The client renews the lease until it is released or lost. Dropping the value releases nothing: call [Lease.Release],
// or close the client.
//
// A goroutine cannot be stopped from outside: call [Lease.Check] before each step that needs the lock, or pass
// [Lease.Context] to the work. All methods may be called concurrently.
type Lease struct {
	handle *leaseHandle
	ctx    *leaseContext
	cancel context.CancelCauseFunc
	// stopLossCallback stops the callback for a loss. It returns false if the callback has been started.
	stopLossCallback func() bool
}

func newLease(ctx context.Context, h *leaseHandle, onLost func(*Lease)) *Lease {
	ctx, cancel := context.WithCancelCause(ctx)
	l := &Lease{handle: h, cancel: cancel}
	l.ctx = &leaseContext{Context: ctx, lease: l}
	ready := make(chan struct{})
	defer close(ready)
	l.stopLossCallback = context.AfterFunc(h.validity.ended, func() {
		<-ready
		loss := h.validity.loss()
		cancel(loss)
		h.session.runtime.metrics.recordHold(ctx, h, true)
		if onLost != nil {
			onLost(l)
		}
	})
	return l
}

// ID returns the public identifier of the lease, which may be logged and displayed.
func (l *Lease) ID() string { return l.handle.leaseID }

// FencingToken returns the fencing token of the lock, or of the first lock if there are several. Send it with every
// write to the protected resource, which must reject smaller tokens. Positive and below 2^53.
func (l *Lease) FencingToken() int64 {
	if len(l.handle.grants) == 0 {
		return 0
	}
	return l.handle.grants[0].token
}

// FencingTokenOf returns the fencing token of this lock, or false if the lease was not acquired for it. Of the target
// only name and namespace are compared.
func (l *Lease) FencingTokenOf(lock Target) (token int64, ok bool) {
	for _, grant := range l.handle.grants {
		if grant.lock == lock.lock() {
			return grant.token, true
		}
	}
	return 0, false
}

// Locks returns the names of the locks, as namespace/name.
func (l *Lease) Locks() []string {
	locks := make([]string, len(l.handle.grants))
	for i, grant := range l.handle.grants {
		locks[i] = grant.lock.String()
	}
	return locks
}

// IsValid returns true if the lease is valid now, by the client's clock. Once false, it stays false.
func (l *Lease) IsValid() bool { return l.loss() == nil }

// Remaining returns the time for which the lease stays valid if no further heartbeat is confirmed.
func (l *Lease) Remaining() time.Duration {
	if l.loss() != nil {
		return 0
	}
	return l.handle.validity.remaining()
}

// LostReason returns the reason for which the lock is no longer held, or 0 while it is held.
func (l *Lease) LostReason() LostReason {
	if loss := l.loss(); loss != nil {
		return loss.Reason
	}
	return 0
}

// Check returns nil while the lock is held, and a [*LeaseLostError] afterwards. Call it before a step that must not run
// without the lock.
func (l *Lease) Check() error {
	if loss := l.loss(); loss != nil {
		return loss
	}
	return nil
}

// Context returns a context that ends with the context of the acquire, and also when the lock is lost or released. Its
// [context.Cause] is then a [*LeaseLostError]. Its Err checks the clock; its Done is closed at most 50 ms after a loss.
//
// To limit only the wait for the lock, use [WithWait]. A deadline in the context of the acquire also ends this context.
func (l *Lease) Context() context.Context { return l.ctx }

// Release releases the lock and waits until the broker has confirmed the release. If locks were added with [WithUnder],
// each lease releases only what its own call acquired. A repeated call does nothing and returns nil.
//
// The lock is released even if ctx has ended or ends during the call. Release then does not wait for the confirmation,
// and returns the error of ctx unless the confirmation has already arrived. So `defer lease.Release(ctx)` always
// releases the lock.
//
// It fails with a [*LeaseLostError] if the lock was lost before: the protected work may have overlapped with the work
// of another holder. It fails with [ErrUnconfirmed] if no broker confirmed the release before the lease expired, and
// with [ErrRefused] if a broker rejected the release.
func (l *Lease) Release(ctx context.Context) error {
	runtime := l.handle.session.runtime
	// This stops the callback: from here on only the release reports a loss.
	isUnreported := l.stopLossCallback()
	loss := l.handle.validity.loss()
	runtime.mu.Lock()
	result := l.handle.release()
	runtime.mu.Unlock()
	if result == nil {
		return nil
	}
	if isUnreported {
		runtime.metrics.recordHold(ctx, l.handle, loss != nil)
	}
	if loss != nil {
		l.cancel(loss)
		return loss
	}
	l.cancel(&LeaseLostError{Reason: LostReleased})
	select {
	case err := <-result:
		return err
	default:
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("leasehold: the release continues without waiting for its confirmation: %w", ctx.Err())
	}
}

// String returns a description without secrets.
func (l *Lease) String() string {
	state := "valid"
	if loss := l.loss(); loss != nil {
		state = loss.Reason.String()
	}
	locks := strings.Join(l.Locks(), ", ")
	return fmt.Sprintf("lease %s of %s (fencing token %d): %s", l.ID(), locks, l.FencingToken(), state)
}

// GoString returns the same text as String, without secrets.
func (l *Lease) GoString() string { return l.String() }

// loss returns the reason for which the lock is no longer held, or nil while it is held.
func (l *Lease) loss() *LeaseLostError {
	if loss := l.handle.validity.loss(); loss != nil {
		return loss
	}
	if l.handle.isReleased.Load() {
		return &LeaseLostError{Reason: LostReleased}
	}
	return nil
}
