// What to take: a lock's name, and how it is shared.

package leasehold

import (
	"math"
	"unicode/utf8"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

const namespaceDefault = "default"

// Target is one lock to take, and how: for one holder alone, unless it is shared or has permits.
type Target struct {
	// Name has 1 to 512 bytes without control characters.
	Name string
	// Namespace has 1 to 63 characters of [a-z0-9-]; empty means "default".
	Namespace string
	// Shared: together with any number of other holders that share it, but with none that does not.
	Shared bool
	// Permits are taken out of the Limit that a semaphore has in all; 0: the lock is no semaphore.
	Permits int
	// Limit is 1 to 1,000; all callers name the same. 0: the one in use.
	Limit int
}

// lockName is a lock with the default namespace filled in.
type lockName struct {
	namespace, name string
}

func (n lockName) String() string { return n.namespace + "/" + n.name }

func (n lockName) proto() *pb.LockRef {
	return &pb.LockRef{Namespace: n.namespace, Name: n.name}
}

func (t Target) lock() lockName { return lockOf(t.Namespace, t.Name) }

func lockOf(namespace, name string) lockName {
	if namespace == "" {
		namespace = namespaceDefault
	}
	return lockName{namespace, name}
}

// check finds what the broker could not be asked.
func (t Target) check() *Error {
	switch {
	case t.Shared && t.Permits != 0:
		return failed(ErrInvalid, "a lock is either shared or has permits")
	case t.Limit != 0 && t.Permits == 0:
		return failed(ErrInvalid, "a limit needs permits")
	case !utf8.ValidString(t.Name) || !utf8.ValidString(t.Namespace):
		return failed(ErrInvalid, "a lock's name is no UTF-8")
	}
	return nil
}

func (t Target) proto() *pb.LockTarget {
	target := &pb.LockTarget{Namespace: t.Namespace, Name: t.Name, Mode: pb.LockMode_LOCK_MODE_EXCLUSIVE}
	switch {
	case t.Shared:
		target.Mode = pb.LockMode_LOCK_MODE_SHARED
	case t.Permits != 0:
		target.Mode = pb.LockMode_LOCK_MODE_SEMAPHORE
		target.Permits, target.Limit = clamped(t.Permits), clamped(t.Limit)
	}
	return target
}

// clamped is a number that the broker refuses, as too much or too little, if it is one that cannot be sent.
func clamped(count int) int32 {
	return int32(min(max(count, math.MinInt32), math.MaxInt32))
}
