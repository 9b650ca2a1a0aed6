// Validity of a lease, shared between its handles and the session that renews it.

package leasehold

import (
	"context"
	"sync"
	"time"

	"leasehold.dev/sdk/internal/clock"
)

// safetyMargin returns the safety margin before the end of the validity, in which the protected work can stop.
func safetyMargin(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 500*time.Millisecond), ttl/4)
}

// leaseValidity is the validity of a lease. It latches: once ended, it never starts again, for all readers.
type leaseValidity struct {
	mu        sync.Mutex
	deadline  time.Duration
	endReason *LeaseLostError
	// ended is cancelled when the validity is found to have ended. Code that waits uses it; code that checks uses loss.
	ended  context.Context
	cancel context.CancelFunc
}

func newLeaseValidity(validUntil, ttl time.Duration) *leaseValidity {
	ended, cancel := context.WithCancel(context.Background())
	return &leaseValidity{deadline: validUntil - safetyMargin(ttl), ended: ended, cancel: cancel}
}

// extend extends the validity after a confirmed heartbeat. It returns false if the validity has ended before; then it
// stays ended.
func (v *leaseValidity) extend(validUntil, ttl time.Duration) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.check() != nil {
		return false
	}
	v.deadline = max(v.deadline, validUntil-safetyMargin(ttl))
	return true
}

// expire ends the validity. Only the first reason is kept.
func (v *leaseValidity) expire(reason *LeaseLostError) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.endReason == nil {
		v.endReason = reason
		v.cancel()
	}
}

// loss returns the reason for which the validity has ended, or nil.
func (v *leaseValidity) loss() *LeaseLostError {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.check()
}

// remaining returns the time for which the lease stays valid without further confirmations.
func (v *leaseValidity) remaining() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.check() != nil {
		return 0
	}
	return max(0, v.deadline-clock.Now())
}

func (v *leaseValidity) check() *LeaseLostError {
	if v.endReason == nil && clock.Now() >= v.deadline {
		v.endReason = &LeaseLostError{Reason: LostExpired}
		v.cancel()
	}
	return v.endReason
}
