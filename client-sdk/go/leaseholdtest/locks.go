// The locks of the broker: who holds them, and who waits in which order.

package leaseholdtest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

const (
	// whole is all of a lock: an exclusive holder takes it, a shared one takes 1 of it.
	whole = 1 << 20
	// ttl is what every lease is told: no test lasts so long.
	ttl = time.Hour
)

type lockName struct{ namespace, name string }

func (n lockName) String() string { return n.namespace + "/" + n.name }

func nameOf(one interface {
	GetNamespace() string
	GetName() string
}) lockName {
	return lockName{cmp.Or(one.GetNamespace(), "default"), one.GetName()}
}

// hold is a lock in the hands of a lease.
type hold struct {
	lease  *lease
	target *pb.LockTarget
	token  int64
	since  time.Time
	limit  int32
	// entries are what each acquire has of it, by request.
	entries map[string]int32
}

// weight is as much as its strongest entry.
func (h *hold) weight() int32 {
	most := int32(0)
	for _, weight := range h.entries {
		most = max(most, weight)
	}
	return most
}

// lease is who holds.
type lease struct {
	id, secret string
	owner      *pb.Owner
	// stream is who hears of it.
	stream *stream
	// requests are those that were granted to it.
	requests map[string]bool
	// locks are what it has, as they were asked for.
	locks []lockName
}

// waiter is a call in line.
type waiter struct {
	ask
	stream *stream
	callID int64
	timer  *time.Timer
	told   *pb.Queued
}

// ask is an acquire of one lock or several.
type ask struct {
	targets   []*pb.LockTarget
	owner     *pb.Owner
	requestID string
	under     string
}

func (a *ask) wants(lock lockName) bool {
	return slices.ContainsFunc(a.targets, func(one *pb.LockTarget) bool { return nameOf(one) == lock })
}

// locks are touched under the broker's lock.
type locks struct {
	held     map[lockName][]*hold
	leases   map[string]*lease
	line     []*waiter
	newest   int64
	refusals map[string][]*pb.Refused
}

func newLocks() locks {
	return locks{held: map[lockName][]*hold{}, leases: map[string]*lease{}, refusals: map[string][]*pb.Refused{}}
}

// weightOf is what a target takes of its lock, and how much that has; 0: as much as is in use.
func weightOf(one *pb.LockTarget) (weight, limit int32) {
	switch one.GetMode() {
	case pb.LockMode_LOCK_MODE_SHARED:
		return 1, whole
	case pb.LockMode_LOCK_MODE_SEMAPHORE:
		return max(one.GetPermits(), 1), one.GetLimit()
	}
	return whole, whole
}

// never is why a call can never be granted, if it cannot.
func (l *locks) never(a *ask) *pb.Refused {
	if a.under != "" && l.leases[a.under] == nil {
		return refusal(pb.ErrorReason_ERROR_REASON_LEASE_NOT_FOUND, "no such lease")
	}
	for _, one := range a.targets {
		if refusals := l.refusals[one.GetName()]; len(refusals) > 0 {
			l.refusals[one.GetName()] = refusals[1:]
			return refusals[0]
		}
		holds := l.held[nameOf(one)]
		weight, limit := weightOf(one)
		inUse := int32(0)
		if len(holds) > 0 {
			inUse = holds[0].limit
		}
		if limit = cmp.Or(limit, inUse, 1); inUse != 0 && inUse != limit || weight > limit {
			return refusal(pb.ErrorReason_ERROR_REASON_LIMIT_MISMATCH, "another limit or mode is in use on this lock")
		}
		if own := l.own(nameOf(one), a.under); own != nil && own.weight() < weight {
			return refusal(pb.ErrorReason_ERROR_REASON_UPGRADE_DENIED, "the lease has less of the lock than that")
		}
	}
	return nil
}

// own is what a lease has of a lock.
func (l *locks) own(lock lockName, leaseID string) *hold {
	for _, hold := range l.held[lock] {
		if hold.lease.id == leaseID {
			return hold
		}
	}
	return nil
}

// settle grants what can be granted, in the order of the line, and tells the others their places.
func (l *locks) settle() {
	wanted := map[lockName]bool{}
	for _, w := range slices.Clone(l.line) {
		isBehind := slices.ContainsFunc(w.targets, func(one *pb.LockTarget) bool {
			// Who is in already does not stand in line.
			return wanted[nameOf(one)] && l.own(nameOf(one), w.under) == nil
		})
		switch {
		case w.under != "" && l.leases[w.under] == nil:
			l.refuse(w, refusal(pb.ErrorReason_ERROR_REASON_LEASE_NOT_FOUND, "no such lease"))
		case !isBehind && l.fits(&w.ask):
			l.leave(w)
			w.stream.granted(w.callID, l.grant(&w.ask, w.stream), l)
		default:
			for _, one := range w.targets {
				wanted[nameOf(one)] = true
			}
		}
	}
	for i, w := range l.line {
		l.tellPlace(w, l.line[:i])
	}
}

func (l *locks) fits(a *ask) bool {
	for _, one := range a.targets {
		weight, limit := weightOf(one)
		if l.own(nameOf(one), a.under) != nil {
			continue
		}
		sum := weight
		for _, hold := range l.held[nameOf(one)] {
			sum, limit = sum+hold.weight(), hold.limit
		}
		if sum > cmp.Or(limit, 1) {
			return false
		}
	}
	return true
}

func (l *locks) grant(a *ask, s *stream) *lease {
	granted := l.leases[a.under]
	if granted == nil {
		granted = &lease{id: uuid.NewString(), secret: uuid.NewString(), owner: a.owner, requests: map[string]bool{}}
		l.leases[granted.id] = granted
	}
	granted.stream = s
	granted.requests[a.requestID] = true
	for _, one := range a.targets {
		weight, limit := weightOf(one)
		lock := nameOf(one)
		if own := l.own(lock, granted.id); own != nil {
			own.entries[a.requestID] = weight
			continue
		}
		if holds := l.held[lock]; len(holds) > 0 {
			limit = holds[0].limit
		}
		l.newest++
		granted.locks = append(granted.locks, lock)
		l.held[lock] = append(l.held[lock], &hold{
			lease: granted, target: one, token: l.newest, since: time.Now(), limit: cmp.Or(limit, 1),
			entries: map[string]int32{a.requestID: weight},
		})
	}
	return granted
}

// refuse ends a wait.
func (l *locks) refuse(w *waiter, why *pb.Refused) {
	l.leave(w)
	w.stream.refused(w.callID, why)
}

func (l *locks) leave(w *waiter) {
	w.timer.Stop()
	l.line = slices.DeleteFunc(l.line, func(one *waiter) bool { return one == w })
}

// waiting is the call with this request, if it is in line.
func (l *locks) waiting(requestID string) *waiter {
	for _, w := range l.line {
		if w.requestID == requestID {
			return w
		}
	}
	return nil
}

// contention is who is in the way.
func (l *locks) contention(a *ask) *pb.Contention {
	found := &pb.Contention{}
	for _, one := range a.targets {
		lock := nameOf(one)
		found.Holders = append(found.Holders, l.holders(lock)...)
		found.QueueLength = max(found.QueueLength, int32(l.queueLength(func(one lockName) bool { return one == lock })))
	}
	found.Holders = found.Holders[:min(len(found.Holders), 5)]
	return found
}

// release gives back what one acquire has of a lock, or what all have; how many entries are left.
func (l *locks) release(from *lease, lock lockName, requestID string) (left int32) {
	own := l.own(lock, from.id)
	if own == nil {
		return 0
	}
	if delete(own.entries, requestID); requestID == "" {
		clear(own.entries)
	}
	if len(own.entries) == 0 {
		l.drop(from, lock)
	}
	return int32(len(own.entries))
}

// end takes everything from a lease.
func (l *locks) end(gone *lease) {
	for _, lock := range slices.Clone(gone.locks) {
		l.drop(gone, lock)
	}
	delete(l.leases, gone.id)
}

func (l *locks) drop(from *lease, lock lockName) {
	from.locks = slices.DeleteFunc(from.locks, func(one lockName) bool { return one == lock })
	l.held[lock] = slices.DeleteFunc(l.held[lock], func(hold *hold) bool { return hold.lease == from })
	if len(l.held[lock]) == 0 {
		delete(l.held, lock)
	}
}

func (l *locks) grants(of *lease) []*pb.Grant {
	var grants []*pb.Grant
	for _, lock := range of.locks {
		hold := l.own(lock, of.id)
		grants = append(grants, &pb.Grant{
			Target: hold.target, FencingToken: hold.token, HoldCount: int32(len(hold.entries)),
		})
	}
	return grants
}

// holding are the leases that have a lock of this name.
func (l *locks) holding(name string) []*lease {
	var found []*lease
	for lock, holds := range l.held {
		for _, hold := range holds {
			if lock.name == name && !slices.Contains(found, hold.lease) {
				found = append(found, hold.lease)
			}
		}
	}
	return found
}

func (l *locks) queueLength(isMeant func(lockName) bool) int {
	count := 0
	for _, w := range l.line {
		if slices.ContainsFunc(w.targets, func(one *pb.LockTarget) bool { return isMeant(nameOf(one)) }) {
			count++
		}
	}
	return count
}

func (l *locks) holders(lock lockName) []*pb.Holder {
	holders := make([]*pb.Holder, 0, len(l.held[lock]))
	for _, hold := range l.held[lock] {
		holders = append(holders, &pb.Holder{
			LeaseId: hold.lease.id, Owner: hold.lease.owner, Target: hold.target, FencingToken: hold.token,
			SinceTime: timestamppb.New(hold.since), Remaining: durationpb.New(ttl),
		})
	}
	return holders
}

func (l *locks) tellPlace(w *waiter, before []*waiter) {
	lock := nameOf(w.targets[0])
	place := &pb.Queued{
		CallId: w.callID, Position: 1, Holders: l.holders(lock), HeartbeatInterval: durationpb.New(time.Second),
		QueueLength: int32(l.queueLength(func(one lockName) bool { return one == lock })),
	}
	for _, one := range before {
		if one.wants(lock) {
			place.Position++
		}
	}
	if told := w.told; told == nil || told.CallId != place.CallId || told.Position != place.Position ||
		told.QueueLength != place.QueueLength || !slices.EqualFunc(told.Holders, place.Holders, isSameHolder) {
		w.told = place
		w.stream.send(&pb.HoldResponse{Message: &pb.HoldResponse_Queued{Queued: place}})
	}
}

func isSameHolder(one, other *pb.Holder) bool { return one.LeaseId == other.LeaseId }

// names are the locks of a call, for people.
func (a *ask) names() string {
	var names []string
	for _, one := range a.targets {
		names = append(names, nameOf(one).String())
	}
	return fmt.Sprintf("lock %s", strings.Join(names, ", "))
}
