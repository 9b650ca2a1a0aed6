// The locks of the broker: their holders and their queue.

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
	// exclusiveWeight is the weight of an exclusive holder and the limit of its lock. A shared holder has weight 1.
	exclusiveWeight = 1 << 20
	// ttl is the TTL of all leases. It is longer than any test.
	ttl = time.Hour

	limitMismatchMessage = "another limit or mode is in use on this lock, or the request exceeds its permits"
	upgradeDeniedMessage = "the lease holds the lock in a weaker mode and cannot upgrade it"
)

type lockName struct{ namespace, name string }

func (n lockName) String() string { return n.namespace + "/" + n.name }

func nameOf(ref interface {
	GetNamespace() string
	GetName() string
}) lockName {
	return lockName{cmp.Or(ref.GetNamespace(), "default"), ref.GetName()}
}

// hold is the hold of a lease on a lock.
type hold struct {
	lease  *lease
	target *pb.LockTarget
	token  int64
	since  time.Time
	limit  int32
	// entries is the weight of each acquire that entered the lock, by request id.
	entries map[string]int32
}

// weight returns the largest weight of the entries.
func (h *hold) weight() int32 {
	largest := int32(0)
	for _, weight := range h.entries {
		largest = max(largest, weight)
	}
	return largest
}

// lease is a holder of locks.
type lease struct {
	id, secret string
	owner      *pb.Owner
	// stream receives the messages about the lease.
	stream *stream
	// requests is the ids of the requests that were granted to the lease.
	requests map[string]bool
	// locks is the held locks, in the order of their acquires.
	locks []lockName
}

// waiter is an acquire in the queue.
type waiter struct {
	acquireRequest
	stream       *stream
	callID       int64
	timer        *time.Timer
	lastPosition *pb.Queued
}

// acquireRequest is the request of an acquire of one or several locks.
type acquireRequest struct {
	targets   []*pb.LockTarget
	owner     *pb.Owner
	requestID string
	under     string
}

func (r *acquireRequest) includes(lock lockName) bool {
	return slices.ContainsFunc(r.targets, func(target *pb.LockTarget) bool { return nameOf(target) == lock })
}

// locks is all locks, leases and waiters. The broker's mutex guards it.
type locks struct {
	holds      map[lockName][]*hold
	leases     map[string]*lease
	queue      []*waiter
	setLimits  map[lockName]int32
	lastToken  int64
	rejections map[string][]*pb.Refused
}

func newLocks() locks {
	return locks{
		holds: map[lockName][]*hold{}, leases: map[string]*lease{}, setLimits: map[lockName]int32{},
		rejections: map[string][]*pb.Refused{},
	}
}

// weightOf returns the weight of a target and the limit of its lock. A limit of 0 means the limit in use. A set limit
// overrides the limit of a semaphore's target.
func (l *locks) weightOf(target *pb.LockTarget) (weight, limit int32) {
	switch target.GetMode() {
	case pb.LockMode_LOCK_MODE_SHARED:
		return 1, exclusiveWeight
	case pb.LockMode_LOCK_MODE_SEMAPHORE:
		return max(target.GetPermits(), 1), cmp.Or(l.setLimits[nameOf(target)], target.GetLimit())
	}
	return exclusiveWeight, exclusiveWeight
}

// limitInUse returns the limit of a lock that has holders or a set limit; otherwise 0.
func (l *locks) limitInUse(lock lockName) int32 {
	if holds := l.holds[lock]; len(holds) > 0 {
		return holds[0].limit
	}
	return l.setLimits[lock]
}

// isLimitMismatch returns true if another limit or mode is in use on the lock of a target, or the target exceeds the
// limit.
func (l *locks) isLimitMismatch(target *pb.LockTarget) bool {
	weight, limit := l.weightOf(target)
	inUse := l.limitInUse(nameOf(target))
	limit = cmp.Or(limit, inUse, 1)
	return inUse != 0 && inUse != limit || weight > limit
}

// setLimit sets the limit of a lock, rejects the waiters that exceed the limit, and returns the previous limit. It
// returns false if the lock is held in exclusive or shared mode.
func (l *locks) setLimit(lock lockName, limit int32) (previous int32, ok bool) {
	previous = l.limitInUse(lock)
	if previous == exclusiveWeight {
		return 0, false
	}
	l.setLimits[lock] = limit
	for _, hold := range l.holds[lock] {
		hold.limit = limit
	}
	for _, w := range slices.Clone(l.queue) {
		if w.includes(lock) && slices.ContainsFunc(w.targets, l.isLimitMismatch) {
			l.reject(w, newRefused(pb.ErrorReason_ERROR_REASON_LIMIT_MISMATCH, limitMismatchMessage))
		}
	}
	l.grantWaiters()
	return previous, true
}

// removeLimit removes the set limit of a lock and returns the limit, which stays in use until the lock is idle.
func (l *locks) removeLimit(lock lockName) (previous int32) {
	previous = l.setLimits[lock]
	delete(l.setLimits, lock)
	return previous
}

// findRejection returns the rejection of an acquire that can never be granted, or of one that Refuse rejects; otherwise
// nil.
func (l *locks) findRejection(r *acquireRequest) *pb.Refused {
	if r.under != "" && l.leases[r.under] == nil {
		return newRefused(pb.ErrorReason_ERROR_REASON_LEASE_NOT_FOUND, unknownLease)
	}
	for _, target := range r.targets {
		if rejections := l.rejections[target.GetName()]; len(rejections) > 0 {
			l.rejections[target.GetName()] = rejections[1:]
			return rejections[0]
		}
		if l.isLimitMismatch(target) {
			return newRefused(pb.ErrorReason_ERROR_REASON_LIMIT_MISMATCH, limitMismatchMessage)
		}
		weight, _ := l.weightOf(target)
		if hold := l.holdOf(nameOf(target), r.under); hold != nil && hold.weight() < weight {
			return newRefused(pb.ErrorReason_ERROR_REASON_UPGRADE_DENIED, upgradeDeniedMessage)
		}
	}
	return nil
}

// holdOf returns the hold of a lease on a lock, or nil.
func (l *locks) holdOf(lock lockName, leaseID string) *hold {
	for _, hold := range l.holds[lock] {
		if hold.lease.id == leaseID {
			return hold
		}
	}
	return nil
}

// grantWaiters grants the waiters that can be granted, in the order of the queue, and sends the others their queue
// positions.
func (l *locks) grantWaiters() {
	requested := map[lockName]bool{}
	for _, w := range slices.Clone(l.queue) {
		isBlocked := slices.ContainsFunc(w.targets, func(target *pb.LockTarget) bool {
			// A lease that holds the lock does not queue for it.
			return requested[nameOf(target)] && l.holdOf(nameOf(target), w.under) == nil
		})
		switch {
		case w.under != "" && l.leases[w.under] == nil:
			l.reject(w, newRefused(pb.ErrorReason_ERROR_REASON_LEASE_NOT_FOUND, unknownLease))
		case !isBlocked && l.hasRoom(&w.acquireRequest):
			l.dequeue(w)
			w.stream.sendGranted(w.callID, l.grant(&w.acquireRequest, w.stream), l)
		default:
			for _, target := range w.targets {
				requested[nameOf(target)] = true
			}
		}
	}
	for i, w := range l.queue {
		l.sendPosition(w, l.queue[:i])
	}
}

func (l *locks) hasRoom(r *acquireRequest) bool {
	for _, target := range r.targets {
		weight, limit := l.weightOf(target)
		lock := nameOf(target)
		if l.holdOf(lock, r.under) == nil && weight+l.weightInUse(lock) > cmp.Or(l.limitInUse(lock), limit, 1) {
			return false
		}
	}
	return true
}

// weightInUse returns the weight of all holders of a lock.
func (l *locks) weightInUse(lock lockName) (sum int32) {
	for _, hold := range l.holds[lock] {
		sum += hold.weight()
	}
	return sum
}

func (l *locks) grant(r *acquireRequest, s *stream) *lease {
	holder := l.leases[r.under]
	if holder == nil {
		holder = &lease{id: uuid.NewString(), secret: uuid.NewString(), owner: r.owner, requests: map[string]bool{}}
		l.leases[holder.id] = holder
	}
	holder.stream = s
	holder.requests[r.requestID] = true
	for _, target := range r.targets {
		weight, limit := l.weightOf(target)
		lock := nameOf(target)
		if hold := l.holdOf(lock, holder.id); hold != nil {
			hold.entries[r.requestID] = weight
			continue
		}
		l.lastToken++
		holder.locks = append(holder.locks, lock)
		l.holds[lock] = append(l.holds[lock], &hold{
			lease: holder, target: target, token: l.lastToken, since: time.Now(),
			limit: cmp.Or(l.limitInUse(lock), limit, 1), entries: map[string]int32{r.requestID: weight},
		})
	}
	return holder
}

// reject removes a waiter from the queue and rejects it.
func (l *locks) reject(w *waiter, refused *pb.Refused) {
	l.dequeue(w)
	w.stream.sendRefused(w.callID, refused)
}

func (l *locks) dequeue(w *waiter) {
	w.timer.Stop()
	l.queue = slices.DeleteFunc(l.queue, func(queued *waiter) bool { return queued == w })
}

// findWaiter returns the waiter with this request id, or nil.
func (l *locks) findWaiter(requestID string) *waiter {
	for _, w := range l.queue {
		if w.requestID == requestID {
			return w
		}
	}
	return nil
}

// contention returns the holders and the queue length that block an acquire.
func (l *locks) contention(r *acquireRequest) *pb.Contention {
	contention := &pb.Contention{}
	for _, target := range r.targets {
		lock := nameOf(target)
		contention.Holders = append(contention.Holders, l.holders(lock)...)
		queueLength := l.queueLength(func(other lockName) bool { return other == lock })
		contention.QueueLength = max(contention.QueueLength, int32(queueLength))
	}
	contention.Holders = contention.Holders[:min(len(contention.Holders), 5)]
	return contention
}

// release removes the entry of one acquire from a lock, or all entries without a request id. It returns the number of
// remaining entries.
func (l *locks) release(lease *lease, lock lockName, requestID string) (remaining int32) {
	hold := l.holdOf(lock, lease.id)
	if hold == nil {
		return 0
	}
	if delete(hold.entries, requestID); requestID == "" {
		clear(hold.entries)
	}
	if len(hold.entries) == 0 {
		l.removeHold(lease, lock)
	}
	return int32(len(hold.entries))
}

// endLease releases all locks of a lease and removes the lease.
func (l *locks) endLease(lease *lease) {
	for _, lock := range slices.Clone(lease.locks) {
		l.removeHold(lease, lock)
	}
	delete(l.leases, lease.id)
}

func (l *locks) removeHold(lease *lease, lock lockName) {
	lease.locks = slices.DeleteFunc(lease.locks, func(other lockName) bool { return other == lock })
	l.holds[lock] = slices.DeleteFunc(l.holds[lock], func(hold *hold) bool { return hold.lease == lease })
	if len(l.holds[lock]) == 0 {
		delete(l.holds, lock)
	}
}

func (l *locks) grants(lease *lease) []*pb.Grant {
	var grants []*pb.Grant
	for _, lock := range lease.locks {
		hold := l.holdOf(lock, lease.id)
		grants = append(grants, &pb.Grant{
			Target: hold.target, FencingToken: hold.token, HoldCount: int32(len(hold.entries)),
		})
	}
	return grants
}

// leasesHolding returns the leases that hold a lock of this name.
func (l *locks) leasesHolding(name string) []*lease {
	var leases []*lease
	for lock, holds := range l.holds {
		for _, hold := range holds {
			if lock.name == name && !slices.Contains(leases, hold.lease) {
				leases = append(leases, hold.lease)
			}
		}
	}
	return leases
}

func (l *locks) queueLength(matches func(lockName) bool) int {
	count := 0
	for _, w := range l.queue {
		if slices.ContainsFunc(w.targets, func(target *pb.LockTarget) bool { return matches(nameOf(target)) }) {
			count++
		}
	}
	return count
}

func (l *locks) holders(lock lockName) []*pb.Holder {
	holders := make([]*pb.Holder, 0, len(l.holds[lock]))
	for _, hold := range l.holds[lock] {
		holders = append(holders, &pb.Holder{
			LeaseId: hold.lease.id, Owner: hold.lease.owner, Target: hold.target, FencingToken: hold.token,
			SinceTime: timestamppb.New(hold.since), Remaining: durationpb.New(ttl),
		})
	}
	return holders
}

func (l *locks) sendPosition(w *waiter, ahead []*waiter) {
	lock := nameOf(w.targets[0])
	position := &pb.Queued{
		CallId: w.callID, Position: 1, Holders: l.holders(lock), HeartbeatInterval: durationpb.New(time.Second),
		QueueLength: int32(l.queueLength(func(other lockName) bool { return other == lock })),
	}
	for _, waiter := range ahead {
		if waiter.includes(lock) {
			position.Position++
		}
	}
	if last := w.lastPosition; last == nil || last.CallId != position.CallId || last.Position != position.Position ||
		last.QueueLength != position.QueueLength || !slices.EqualFunc(last.Holders, position.Holders, isSameHolder) {
		w.lastPosition = position
		w.stream.send(&pb.HoldResponse{Message: &pb.HoldResponse_Queued{Queued: position}})
	}
}

func isSameHolder(first, second *pb.Holder) bool { return first.LeaseId == second.LeaseId }

// describeLocks returns the names of the requested locks, for messages.
func (r *acquireRequest) describeLocks() string {
	var names []string
	for _, target := range r.targets {
		names = append(names, nameOf(target).String())
	}
	return fmt.Sprintf("lock %s", strings.Join(names, ", "))
}
