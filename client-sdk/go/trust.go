// How long a lease may be trusted, shared between its holders and the keeper that renews it.

package leasehold

import (
	"context"
	"sync"
	"time"

	"leasehold.dev/sdk/internal/clock"
)

// margin is how much earlier than the validity ends a holder gives up, so that its work can stop in time.
func margin(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 500*time.Millisecond), ttl/4)
}

// trust latches: once over, it never begins again, whoever noticed first.
type trust struct {
	mu    sync.Mutex
	until time.Duration
	lost  *LeaseLostError
	// over is done when it is: for those who wait, not for those who ask.
	over   context.Context
	cancel context.CancelFunc
}

func newTrust(validUntil, ttl time.Duration) *trust {
	over, cancel := context.WithCancel(context.Background())
	return &trust{until: validUntil - margin(ttl), over: over, cancel: cancel}
}

// extend notes that validity was confirmed. False if trust was over before that was heard: then it stays over.
func (t *trust) extend(validUntil, ttl time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.look() != nil {
		return false
	}
	t.until = max(t.until, validUntil-margin(ttl))
	return true
}

// end ends it. Only the first reason stays.
func (t *trust) end(why *LeaseLostError) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost == nil {
		t.lost = why
		t.cancel()
	}
}

// loss is why it is over, if it is.
func (t *trust) loss() *LeaseLostError {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.look()
}

// remaining is how long it can be trusted if nothing is confirmed from now on.
func (t *trust) remaining() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.look() != nil {
		return 0
	}
	return max(0, t.until-clock.Now())
}

func (t *trust) look() *LeaseLostError {
	if t.lost == nil && clock.Now() >= t.until {
		t.lost = &LeaseLostError{Reason: LostExpired}
		t.cancel()
	}
	return t.lost
}
