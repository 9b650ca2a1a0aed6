// A lease of the stream, or on its way to the next one.

package leasehold

import (
	"slices"
	"time"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
	"leasehold.dev/sdk/internal/clock"
)

type owned struct {
	// lease is never changed, only replaced: it may be on its way out.
	lease        *pb.Lease
	ttl          time.Duration
	validUntil   time.Duration
	attachNumber int32
	isHere       bool
	grantedAt    time.Duration
	// cameAt is when it came to this stream from another one; 0: it was granted here.
	cameAt time.Duration
	// trust is what its holders have; nil until it is handed out.
	trust *trust
	// unborn is the call that it was granted to, while too little of its validity is known to hand it out.
	unborn *wait
	// grips have not given back what they have.
	grips    int
	release  *release
	parts    map[int]*part
	lastPart int
}

func newOwned(lease *pb.Lease, wait *wait, sent time.Duration) *owned {
	ttl := span(lease.GetTtl())
	return &owned{
		lease:        lease,
		ttl:          ttl,
		validUntil:   sent + ttl,
		attachNumber: wait.attachNumber,
		isHere:       true,
		grantedAt:    clock.Now(),
		unborn:       wait,
		grips:        1,
		parts:        map[int]*part{},
	}
}

func (o *owned) id() string { return o.lease.GetLeaseId() }

// isOld says whether its validity counts from so long ago that a heartbeat is due.
func (o *owned) isOld(now time.Duration) bool {
	return now >= o.validUntil-o.ttl+o.interval()
}

// interval is how often it needs heartbeats.
func (o *owned) interval() time.Duration {
	if interval := span(o.lease.GetHeartbeatInterval()); interval > 0 {
		return min(interval, o.ttl/3)
	}
	return o.ttl / 3
}

// isDue says whether its time has passed.
func (o *owned) isDue(now time.Duration) bool {
	if o.release != nil {
		return now >= o.release.goneAt
	}
	if o.trust == nil {
		return now > o.grantedAt+o.ttl
	}
	return o.trust.loss() != nil
}

// merge merges the grants of the call's own locks; the answer may omit grants added by other calls.
func (o *owned) merge(said *pb.Lease, call *call) {
	asked := call.locks()
	grants := slices.DeleteFunc(slices.Clone(o.lease.GetGrants()), func(grant *pb.Grant) bool {
		return asked[lockOfGrant(grant)]
	})
	for _, grant := range said.GetGrants() {
		if asked[lockOfGrant(grant)] {
			grants = append(grants, grant)
		}
	}
	o.lease = withGrants(said, grants)
}

// drop: it has that lock no more.
func (o *owned) drop(gone lockName) {
	grants := slices.DeleteFunc(slices.Clone(o.lease.GetGrants()), func(grant *pb.Grant) bool {
		return lockOfGrant(grant) == gone
	})
	o.lease = withGrants(o.lease, grants)
}

func withGrants(lease *pb.Lease, grants []*pb.Grant) *pb.Lease {
	return &pb.Lease{
		LeaseId: lease.LeaseId, LeaseToken: lease.LeaseToken, Grants: grants,
		Ttl: lease.Ttl, HeartbeatInterval: lease.HeartbeatInterval, ExpireTime: lease.ExpireTime,
	}
}

// end: nobody may rely on it any more.
func (o *owned) end(loss *LeaseLostError) {
	if o.trust != nil {
		o.trust.end(loss)
	}
	if o.unborn != nil {
		o.unborn.tell(answer{err: loss})
	}
}

// names are its locks, for people.
func (o *owned) names() []string {
	var names []string
	for _, grant := range o.lease.GetGrants() {
		names = append(names, lockOfGrant(grant).String())
	}
	return names
}

func lockOfGrant(grant *pb.Grant) lockName {
	return lockOf(grant.GetTarget().GetNamespace(), grant.GetTarget().GetName())
}
