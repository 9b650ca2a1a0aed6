// Lease handles: the handles of acquires, by which their locks are released.

package leasehold

import (
	"sync/atomic"
	"time"

	"leasehold.dev/sdk/internal/clock"
)

// lockGrant is a lock that a call acquired or entered, with its fencing token.
type lockGrant struct {
	lock  lockName
	token int64
}

// leaseHandle is the handle of one acquire: its locks and the validity of their lease. Several handles can share a
// lease.
type leaseHandle struct {
	session   *session
	leaseID   string
	requestID string
	// grants are in the order of the grants of the lease.
	grants     []lockGrant
	validity   *leaseValidity
	acquiredAt time.Duration
	// isReleased is true after the release. It is written under the client's lock only.
	isReleased atomic.Bool
}

func newLeaseHandle(s *session, leaseID, requestID string, grants []lockGrant, validity *leaseValidity) *leaseHandle {
	return &leaseHandle{
		session: s, leaseID: leaseID, requestID: requestID, grants: grants, validity: validity, acquiredAt: clock.Now(),
	}
}

// release releases the locks of the handle. The channel receives nil when the release is confirmed, or its error. It
// returns nil if the handle was released before. The caller must hold the client's lock.
func (h *leaseHandle) release() <-chan error {
	if h.isReleased.Swap(true) {
		return nil
	}
	result := make(chan error, 1)
	h.session.releases.release(h, result)
	return result
}
