// Errors of the client: one value for each reason that a caller may handle differently.

package leasehold

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Reasons for which an acquire failed. Test for them with errors.Is, because messages are for people. New reasons may
// be added. Details that the broker sent are in an [*Error], which errors.As finds.
var (
	// ErrHeld means that another caller holds the lock or the lock is closed, and that the call did not wait.
	ErrHeld = errors.New("the lock is held")
	// ErrWaitTimeout means that the wait timed out. The call has left the queue, unless another attempt of it is still
	// queued or has been granted the lock (STILL_QUEUED).
	ErrWaitTimeout = errors.New("the wait for the lock timed out")
	// ErrLeaseLost means that the lock was lost; see [LeaseLostError]. An acquire returns it if the lease given to
	// [WithUnder] has ended.
	ErrLeaseLost = errors.New("the lock was lost")
	// ErrLimitMismatch means that another limit or mode is in use on the lock, or the request exceeds its permits.
	ErrLimitMismatch = errors.New("another limit or mode is in use on this lock, or the request exceeds its permits")
	// ErrUpgradeDenied means that a lease with shared access requested exclusive access to the same lock.
	ErrUpgradeDenied = errors.New("the lease holds the lock in a weaker mode and cannot upgrade it")
	// ErrInvalid means that a parameter of the call is not valid.
	ErrInvalid = errors.New("a parameter is not valid")
	// ErrQueueFull means that the queue of the lock is full.
	ErrQueueFull = errors.New("the queue is full")
	// ErrQuotaExceeded means that a quota of the broker is exhausted.
	ErrQuotaExceeded = errors.New("a quota is exhausted")
	// ErrStoreFull means that the broker's store has no memory for another holder or waiter.
	ErrStoreFull = errors.New("the store is full")
	// ErrUnsupportedByStore means that the broker's store does not support the call.
	ErrUnsupportedByStore = errors.New("not supported by the store")
	// ErrUnauthenticated means that the credential is missing or not accepted.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrPermissionDenied means that the caller is not authorized for the call.
	ErrPermissionDenied = errors.New("permission denied")
	// ErrUnavailable means that no broker, or no store behind it, responded in time. The call was repeated until then.
	// If the lock was acquired nevertheless, its lease expires.
	ErrUnavailable = errors.New("no broker or no store is available")
	// ErrStoreRecovering means that the store has lost data. It grants nothing until every lease that it may have lost
	// has expired.
	ErrStoreRecovering = errors.New("the store is recovering")
	// ErrInternal means that the broker failed with an internal error.
	ErrInternal = errors.New("the broker failed with an internal error")
	// ErrClosed means that the client is closed.
	ErrClosed = errors.New("the client is shut down")
	// ErrOther means that the broker rejected the call for a reason that this client does not define. Newer brokers may
	// send new reasons.
	ErrOther = errors.New("the broker rejected the call")
)

// Reasons for which a release failed. The lease has ended in any case; see also [ErrLeaseLost].
var (
	// ErrUnconfirmed means that no broker confirmed the release before the lease expired or the client closed. The lease
	// expires if it was not released.
	ErrUnconfirmed = errors.New("no broker has confirmed the release; the lease expires if it was not released")
	// ErrRefused means that the broker rejected the release.
	ErrRefused = errors.New("the broker rejected the release")
)

// Reasons for which a client could not be created or could not connect.
var (
	// ErrNoEndpoint means that no endpoint was given.
	ErrNoEndpoint = errors.New("no endpoint: give at least one, as in http://127.0.0.1:7070")
	// ErrInvalidEndpoint means that an endpoint is not a valid http or https URL.
	ErrInvalidEndpoint = errors.New("the endpoint is not valid; expected a URL as in http://127.0.0.1:7070")
	// ErrInvalidCredential means that the credential contains other characters than printable ASCII, or that its file
	// cannot be read.
	ErrInvalidCredential = errors.New("the credential is not printable ASCII")
	// ErrInsecureToken means that a bearer token would be sent unencrypted to another machine
	// ([WithAllowInsecureToken]).
	ErrInsecureToken = errors.New("the bearer token would be sent unencrypted to another machine")
	// ErrInvalidOwner means that the owner's name is empty, longer than 256 bytes or not UTF-8.
	ErrInvalidOwner = errors.New("the owner's name must have 1 to 256 bytes of UTF-8")
	// ErrCredentialRefused means that the brokers respond, but reject this credential or calls without a credential.
	ErrCredentialRefused = errors.New("the credential is missing or not accepted")
	// ErrUnreachable means that no broker answers.
	ErrUnreachable = errors.New("no broker answers")
)

// ErrNotHeld means that code which needs a lock runs without it ([AssertHeld]).
var ErrNotHeld = errors.New("the running code does not hold the lock")

// Error is the error of a failed call, with the details that the broker sent.
type Error struct {
	// Err is one of the reasons above. errors.Is finds it.
	Err error
	// Message is a description for people.
	Message string
	// Holders are at most 5 holders of the lock, if they blocked the call.
	Holders []Holder
	// QueueLength is the number of waiters, if the lock is held.
	QueueLength int
	// Closure is the closure of the lock; nil if the lock is not closed.
	Closure *Closure
	// RetryAfter is the time to wait before the next attempt; 0 if the broker sent none. For a held lock it is the
	// shortest time after which a holder's lease expires unless it is renewed.
	RetryAfter time.Duration
}

// Holder is a holder of a lock, as other callers see it. It is a hint that may be outdated.
type Holder struct {
	// LeaseID is the public identifier of the lease.
	LeaseID string
	// Owner is the owner name of the holder's client ([WithOwner]).
	Owner string
	// Reason is the reason that the holder gave for its acquire ([WithReason]); may be empty.
	Reason string
	// FencingToken is the fencing token of the grant.
	FencingToken int64
	// Since is the time of the grant, by the broker's clock; zero if unknown.
	Since time.Time
	// Remaining is the time until the lease expires unless it is renewed.
	Remaining time.Duration
}

// Closure is a period in which a lock grants nothing new. It is a hint that may be outdated.
type Closure struct {
	// Cause is the cause of the closure.
	Cause ClosureCause
	// Owner is the owner name of the client whose lease has ended, or the name of the operator; empty if the caller may
	// not observe the lock.
	Owner string
	// Reason is the reason that the client gave for its acquire, or the operator for the closure; may be empty.
	Reason string
	// Until is the end of the period, by the clock of the store; zero if unknown.
	Until time.Time
	// Remaining is the time until the end of the period.
	Remaining time.Duration
}

// ClosureCause is the cause of a [Closure].
type ClosureCause int

// Causes of a closure.
const (
	// ClosureOther means that the broker sent a cause that this client does not define.
	ClosureOther ClosureCause = iota
	// ClosureLockDelay means that a lease with a lock delay ([WithLockDelay]) expired or was revoked.
	ClosureLockDelay
	// ClosureAtLeast means that a lease ended before the time of [WithAtLeast].
	ClosureAtLeast
	// ClosureOperator means that an operator closed the lock.
	ClosureOperator
)

var closureCauses = map[ClosureCause]string{
	ClosureLockDelay: "lock delay",
	ClosureAtLeast:   "at least",
	ClosureOperator:  "operator",
}

func (c ClosureCause) String() string {
	if text, ok := closureCauses[c]; ok {
		return text
	}
	return "other"
}

func (e *Error) Error() string {
	text := e.Message
	if text == "" {
		text = e.Err.Error()
	}
	if len(e.Holders) > 0 {
		owners := make([]string, len(e.Holders))
		for i, holder := range e.Holders {
			owners[i] = ownerText(holder.Owner, holder.Reason)
		}
		text += "; held by " + strings.Join(owners, ", ")
	}
	if e.Closure != nil && e.Closure.Owner != "" {
		text += "; closed by " + ownerText(e.Closure.Owner, e.Closure.Reason)
	}
	return "leasehold: " + text
}

func ownerText(owner, reason string) string {
	if reason == "" {
		return owner
	}
	return owner + " (" + reason + ")"
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// LeaseLostError is the error of a lock that was lost, or whose lease was released. The protected work may overlap with
// the work of another holder, unless fencing tokens are checked.
type LeaseLostError struct {
	// Reason is the reason of the loss.
	Reason LostReason
	// Message is the message of the broker, for people; may be empty.
	Message string
}

func (e *LeaseLostError) Error() string {
	text := fmt.Sprintf("leasehold: %s: %s", ErrLeaseLost, e.Reason)
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// Unwrap returns [ErrLeaseLost].
func (e *LeaseLostError) Unwrap() error { return ErrLeaseLost }

// LostReason is the reason for which a lease ended.
type LostReason int

// Reasons of a lost lease. The zero value means that the lease is valid.
const (
	// LostExpired means that no renewal was confirmed in time. The network, the broker or its store could not be
	// reached, or this process was suspended.
	LostExpired LostReason = iota + 1
	// LostRevoked means that an operator revoked the lease.
	LostRevoked
	// LostByStore means that the store lost the lease.
	LostByStore
	// LostMaxHold means that the lock was held for the time of [WithMaxHold].
	LostMaxHold
	// LostReleased means that the lease was released, by this client or with a copy of the lease.
	LostReleased
	// LostMoved means that another client attached a copy of the lease.
	LostMoved
	// LostCredentialExpired means that the client's credential expired.
	LostCredentialExpired
	// LostClosed means that the client was closed.
	LostClosed
	// LostOther means that the broker sent a reason that this client does not define.
	LostOther
)

var lostReasons = map[LostReason]string{
	0:                     "not lost",
	LostExpired:           "no renewal was confirmed in time",
	LostRevoked:           "revoked",
	LostByStore:           "the store lost the lease",
	LostMaxHold:           "the lease has reached its max_hold",
	LostReleased:          "released",
	LostMoved:             "moved to another client",
	LostCredentialExpired: "the credential expired",
	LostClosed:            "the client is shut down",
}

func (r LostReason) String() string {
	if text, ok := lostReasons[r]; ok {
		return text
	}
	return "lost"
}

// newError creates an error with this reason. An empty message stands for the text of the reason.
func newError(reason error, message string) *Error {
	return &Error{Err: reason, Message: message}
}
