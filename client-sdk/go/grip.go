// What one acquire has got, and the way to give it back.

package leasehold

import (
	"sync/atomic"
	"time"

	"leasehold.dev/sdk/internal/clock"
)

// held is a lock that a call took or entered, with its fencing token.
type held struct {
	lock  lockName
	token int64
}

// grip is the locks of one acquire and the trust in their lease.
type grip struct {
	keeper    *keeper
	leaseID   string
	requestID string
	// locks are in the order of the lease.
	locks []held
	trust *trust
	since time.Duration
	// isGivenBack is set under the client's lock.
	isGivenBack atomic.Bool
}

func newGrip(k *keeper, leaseID, requestID string, locks []held, trust *trust) *grip {
	return &grip{
		keeper: k, leaseID: leaseID, requestID: requestID, locks: locks, trust: trust, since: clock.Now(),
	}
}

// giveBack gives it back, once, under the client's lock. What it answers: nil once that is confirmed, or why it did
// not go as hoped. Nothing: it was given back before.
func (g *grip) giveBack() <-chan error {
	if g.isGivenBack.Swap(true) {
		return nil
	}
	answer := make(chan error, 1)
	g.keeper.releases.giveBack(g, answer)
	return answer
}
