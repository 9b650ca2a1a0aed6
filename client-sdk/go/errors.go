// Everything that can go wrong, one value for each reason that a caller may treat differently.

package leasehold

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Why a lock was not taken. Ask with errors.Is; messages are for people, and new reasons may come. What the broker
// said besides is in an [*Error], which errors.As finds.
var (
	// ErrHeld: somebody else holds the lock, and the call did not wait.
	ErrHeld = errors.New("the lock is held")
	// ErrWaitTimeout: the wait timed out. The call has left the queue, unless another attempt of it is still queued or
	// has been granted the lock (STILL_QUEUED).
	ErrWaitTimeout = errors.New("the wait is over")
	// ErrLeaseLost: the lock was lost; see [LeaseLostError]. From an acquire: the lease given to WithUnder is over.
	ErrLeaseLost = errors.New("the lock was lost")
	// ErrLimitMismatch: another limit or mode is in use on this lock.
	ErrLimitMismatch = errors.New("another limit or mode is in use")
	// ErrUpgradeDenied: shared to exclusive under one lease.
	ErrUpgradeDenied = errors.New("no upgrade from shared to exclusive")
	// ErrInvalid: a field of the call is not legal.
	ErrInvalid = errors.New("not legal")
	// ErrQueueFull: the lock's line is full.
	ErrQueueFull = errors.New("the line is full")
	// ErrQuotaExceeded: a quota of the broker is used up.
	ErrQuotaExceeded = errors.New("a quota is used up")
	// ErrStoreFull: the broker's store has no memory for another holder or waiter.
	ErrStoreFull = errors.New("the store is full")
	// ErrUnsupportedByStore: the broker's store cannot do that.
	ErrUnsupportedByStore = errors.New("not supported by the store")
	// ErrUnauthenticated: the credential is missing or not accepted.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrPermissionDenied: the credential does not allow that.
	ErrPermissionDenied = errors.New("permission denied")
	// ErrUnavailable: no broker, or no store behind it, could answer in time. The call was repeated until then, and
	// was given up: if it did take the lock, that runs out by itself.
	ErrUnavailable = errors.New("unavailable")
	// ErrStoreRecovering: the store has lost data and grants nothing until every lease that it may have forgotten
	// is over.
	ErrStoreRecovering = errors.New("the store is recovering")
	// ErrInternal: a fault of the broker.
	ErrInternal = errors.New("a fault of the broker")
	// ErrClosed: the client is closed.
	ErrClosed = errors.New("the client is closed")
	// ErrOther: anything else that a broker says, perhaps a newer one than this client.
	ErrOther = errors.New("refused")
)

// Why a release did not go as hoped. The lease is gone in any case; see also [ErrLeaseLost].
var (
	// ErrUnconfirmed: no broker has confirmed it while the lease could have lived; it has run out by now.
	ErrUnconfirmed = errors.New("no broker has confirmed the release; the lock runs out by itself")
	// ErrRefused: the broker would not.
	ErrRefused = errors.New("the release was refused")
)

// Why there is no client.
var (
	// ErrNoEndpoint: no endpoint was given.
	ErrNoEndpoint = errors.New("no endpoint: give at least one, as in http://127.0.0.1:7070")
	// ErrInvalidEndpoint: an endpoint is none.
	ErrInvalidEndpoint = errors.New("not an endpoint; expected a URL as in http://127.0.0.1:7070")
	// ErrInvalidCredential: the credential has characters other than printable ones of ASCII, or its file cannot be
	// read.
	ErrInvalidCredential = errors.New("the credential is not printable ASCII")
	// ErrInsecureToken: a bearer token would be sent unencrypted to another machine ([WithAllowInsecureToken]).
	ErrInsecureToken = errors.New("the bearer token would cross the network unencrypted")
	// ErrInvalidOwner: the owner's name is empty, longer than 256 bytes or no UTF-8.
	ErrInvalidOwner = errors.New("the owner's name must have 1 to 256 bytes of UTF-8")
	// ErrCredentialRefused: the brokers answer, and accept no call with this credential, or without one.
	ErrCredentialRefused = errors.New("the credential is missing or not accepted")
	// ErrUnreachable: no broker answers.
	ErrUnreachable = errors.New("no broker answers")
)

// ErrNotHeld: code that needs a lock runs without it ([AssertHeld]).
var ErrNotHeld = errors.New("the running code does not hold the lock")

// Error is a call that failed, with what the broker said of it.
type Error struct {
	// Err is one of the reasons above, as errors.Is finds it.
	Err error
	// Message is for people.
	Message string
	// Holders are some who hold the lock, at most 5, if they were in the way.
	Holders []Holder
	// QueueLength is how many wait, if the lock is held.
	QueueLength int
	// RetryAfter is when to try again; 0 if the broker did not say. Of a held lock: the shortest time until a
	// holder's lease runs out unless it is renewed.
	RetryAfter time.Duration
}

// Holder is somebody who holds a lock, as others may see it. A hint, perhaps stale already.
type Holder struct {
	// LeaseID is the public identifier of the lease.
	LeaseID string
	// Owner is the process.
	Owner string
	// Reason is why it took the lock.
	Reason string
	// FencingToken is its fencing token.
	FencingToken int64
	// Since is when it was granted, by the broker's clock; zero if unknown.
	Since time.Time
	// Remaining is the time left on its lease.
	Remaining time.Duration
}

func (e *Error) Error() string {
	text := e.Message
	if text == "" {
		text = e.Err.Error()
	}
	if len(e.Holders) == 0 {
		return "leasehold: " + text
	}
	named := make([]string, len(e.Holders))
	for i, one := range e.Holders {
		named[i] = one.Owner
		if one.Reason != "" {
			named[i] += " (" + one.Reason + ")"
		}
	}
	return "leasehold: " + text + "; held by " + strings.Join(named, ", ")
}

// Unwrap is the reason.
func (e *Error) Unwrap() error { return e.Err }

// LeaseLostError says that a lock was lost, or that its lease was given back: what it guarded may overlap with the
// work of somebody else, unless a fencing token keeps them apart.
type LeaseLostError struct {
	// Reason is why.
	Reason LostReason
	// Message is what the broker said, for people.
	Message string
}

func (e *LeaseLostError) Error() string {
	text := fmt.Sprintf("leasehold: %s: %s", ErrLeaseLost, e.Reason)
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// Unwrap is [ErrLeaseLost].
func (e *LeaseLostError) Unwrap() error { return ErrLeaseLost }

// LostReason is why a lease is over.
type LostReason int

// The zero value is none of them: the lease is valid.
const (
	// LostExpired: no renewal was confirmed in time: the network, the broker or its store could not be reached, or
	// this process stood still.
	LostExpired LostReason = iota + 1
	// LostRevoked: an operator took it away.
	LostRevoked
	// LostByStore: the store does not know it any more.
	LostByStore
	// LostMaxHold: it has been held for all of its WithMaxHold.
	LostMaxHold
	// LostReleased: it was given back, here or with a copy of the lease.
	LostReleased
	// LostMoved: somebody took it over with a copy of the lease.
	LostMoved
	// LostCredentialExpired: the client's credential ran out.
	LostCredentialExpired
	// LostClosed: the client was closed.
	LostClosed
	// LostOther: a reason that this client does not know.
	LostOther
)

var lostReasons = map[LostReason]string{
	0:                     "not lost",
	LostExpired:           "no renewal was confirmed in time",
	LostRevoked:           "revoked",
	LostByStore:           "the store lost it",
	LostMaxHold:           "held for all of its longest time",
	LostReleased:          "released",
	LostMoved:             "moved to another client",
	LostCredentialExpired: "the credential ran out",
	LostClosed:            "the client is closed",
}

func (r LostReason) String() string {
	if text, ok := lostReasons[r]; ok {
		return text
	}
	return "lost"
}

// failed is an error of this client's own.
func failed(why error, message string) *Error {
	return &Error{Err: why, Message: message}
}
