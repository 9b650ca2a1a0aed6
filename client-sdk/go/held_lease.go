// A lease of a session, attached to its stream or waiting to be attached to the next one.

package leasehold

import (
	"slices"
	"time"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
	"leasehold.dev/sdk/internal/clock"
)

type heldLease struct {
	// proto is never modified, only replaced, because a queued message may refer to it.
	proto        *pb.Lease
	ttl          time.Duration
	validUntil   time.Duration
	attachNumber int32
	isAttached   bool
	grantedAt    time.Duration
	// attachedAt is the time at which the lease was attached to this stream, if it was granted on another one; otherwise
	// 0.
	attachedAt time.Duration
	// validity is the validity that the handles of the lease share; nil until the lease is delivered.
	validity *leaseValidity
	// undelivered is the acquire that the lease was granted to, until enough validity is confirmed to deliver the lease.
	undelivered *pendingAcquire
	// handles is the number of handles that have not been released.
	handles           int
	pendingRelease    *pendingRelease
	partialReleases   map[int]*partialRelease
	lastReleaseNumber int
}

func newHeldLease(granted *pb.Lease, acquire *pendingAcquire, sentAt time.Duration) *heldLease {
	ttl := durationOf(granted.GetTtl())
	return &heldLease{
		proto:           granted,
		ttl:             ttl,
		validUntil:      sentAt + ttl,
		attachNumber:    acquire.attachNumber,
		isAttached:      true,
		grantedAt:       clock.Now(),
		undelivered:     acquire,
		handles:         1,
		partialReleases: map[int]*partialRelease{},
	}
}

func (l *heldLease) id() string { return l.proto.GetLeaseId() }

// isRenewalDue returns true if the confirmed validity started at least one heartbeat interval ago.
func (l *heldLease) isRenewalDue(now time.Duration) bool {
	return now >= l.validUntil-l.ttl+l.heartbeatInterval()
}

// heartbeatInterval returns the longest time between two heartbeats of the lease.
func (l *heldLease) heartbeatInterval() time.Duration {
	if interval := durationOf(l.proto.GetHeartbeatInterval()); interval > 0 {
		return min(interval, l.ttl/3)
	}
	return l.ttl / 3
}

// hasDeadlinePassed returns true if the deadline of the lease has passed: of its release, of its delivery, or of its
// validity.
func (l *heldLease) hasDeadlinePassed(now time.Duration) bool {
	if l.pendingRelease != nil {
		return now >= l.pendingRelease.endedAt
	}
	if l.validity == nil {
		return now > l.grantedAt+l.ttl
	}
	return l.validity.loss() != nil
}

// mergeGrants replaces the grants of the call's own locks; the response may omit grants that other calls added.
func (l *heldLease) mergeGrants(granted *pb.Lease, params *acquireParams) {
	requested := params.locks()
	grants := slices.DeleteFunc(slices.Clone(l.proto.GetGrants()), func(grant *pb.Grant) bool {
		return requested[lockOfGrant(grant)]
	})
	for _, grant := range granted.GetGrants() {
		if requested[lockOfGrant(grant)] {
			grants = append(grants, grant)
		}
	}
	l.proto = withGrants(granted, grants)
}

// removeGrant removes the grant of a lock.
func (l *heldLease) removeGrant(lock lockName) {
	grants := slices.DeleteFunc(slices.Clone(l.proto.GetGrants()), func(grant *pb.Grant) bool {
		return lockOfGrant(grant) == lock
	})
	l.proto = withGrants(l.proto, grants)
}

func withGrants(proto *pb.Lease, grants []*pb.Grant) *pb.Lease {
	return &pb.Lease{
		LeaseId: proto.LeaseId, LeaseToken: proto.LeaseToken, Grants: grants,
		Ttl: proto.Ttl, HeartbeatInterval: proto.HeartbeatInterval, ExpireTime: proto.ExpireTime,
	}
}

// endValidity ends the validity of the lease. If the lease was not delivered, its acquire fails.
func (l *heldLease) endValidity(loss *LeaseLostError) {
	if l.validity != nil {
		l.validity.expire(loss)
	}
	if l.undelivered != nil {
		l.undelivered.complete(acquireResult{err: loss})
	}
}

// lockNames returns the names of the locks, for log messages.
func (l *heldLease) lockNames() []string {
	var names []string
	for _, grant := range l.proto.GetGrants() {
		names = append(names, lockOfGrant(grant).String())
	}
	return names
}

func lockOfGrant(grant *pb.Grant) lockName {
	return lockOf(grant.GetTarget().GetNamespace(), grant.GetTarget().GetName())
}
