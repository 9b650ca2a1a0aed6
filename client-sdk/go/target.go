// Targets of an acquire: the name of a lock, and its mode.

package leasehold

import (
	"fmt"
	"math"
	"unicode/utf8"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

const namespaceDefault = "default"

// Target is a lock to acquire, and its mode: exclusive, unless it is shared or has permits.
type Target struct {
	// Name has 1 to 512 bytes without control characters.
	Name string
	// Namespace has 1 to 63 characters of [a-z0-9-]; empty means "default".
	Namespace string
	// Shared requests the shared mode: any number of shared holders at a time, and no others.
	Shared bool
	// Permits is the number of permits to acquire of a semaphore with this Limit; 0 means that the lock is no
	// semaphore.
	Permits int
	// Limit is the total number of permits, 1 to 1,000. All callers must use the same limit, unless a limit is set with
	// [Client.SetLimit]. 0 uses the limit in use.
	Limit int
}

// lockName is the full name of a lock, with the default namespace filled in.
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

// validate returns an error for a target that cannot be sent to a broker.
func (t Target) validate() *Error {
	switch {
	case t.Shared && t.Permits != 0:
		return newError(ErrInvalid, fmt.Sprintf("lock %q is both shared and has permits; set one of them", t.Name))
	case t.Limit != 0 && t.Permits == 0:
		return newError(ErrInvalid, fmt.Sprintf("lock %q has a limit without permits; set both", t.Name))
	case !utf8.ValidString(t.Name) || !utf8.ValidString(t.Namespace):
		return newError(ErrInvalid, fmt.Sprintf("lock %q in namespace %q: a name is not valid UTF-8", t.Name, t.Namespace))
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
		target.Permits, target.Limit = clampToInt32(t.Permits), clampToInt32(t.Limit)
	}
	return target
}

// clampToInt32 converts a count to the range of int32. The broker rejects a clamped value as too large or too small.
func clampToInt32(count int) int32 {
	return int32(min(max(count, math.MinInt32), math.MaxInt32))
}
