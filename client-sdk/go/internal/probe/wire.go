package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"

	"leasehold.dev/sdk"
)

type command struct {
	ID                int64    `json:"id"`
	Do                string   `json:"do"`
	As                string   `json:"as"`
	Targets           []target `json:"targets"`
	TTLMs             *int64   `json:"ttl_ms"`
	WaitMs            *int64   `json:"wait_ms"`
	MaxHoldMs         *int64   `json:"max_hold_ms"`
	LockDelayMs       *int64   `json:"lock_delay_ms"`
	DisconnectGraceMs *int64   `json:"disconnect_grace_ms"`
	AtLeastMs         *int64   `json:"at_least_ms"`
	Under             string   `json:"under"`
	Reason            string   `json:"reason"`
	Call              int64    `json:"call"`
	Lease             string   `json:"lease"`
	Lock              string   `json:"lock"`
	Limit             int      `json:"limit"`
	Ms                int64    `json:"ms"`
}

type target struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Mode      string `json:"mode"`
	Permits   int    `json:"permits"`
	Limit     int    `json:"limit"`
}

type version struct {
	Language string `json:"language"`
	Version  string `json:"version"`
}

type lease struct {
	LeaseID     string  `json:"lease_id"`
	Tokens      []int64 `json:"tokens"`
	Valid       bool    `json:"valid"`
	RemainingMs float64 `json:"remaining_ms"`
	LostReason  *string `json:"lost_reason"`
}

type holder struct {
	LeaseID     string  `json:"lease_id"`
	Owner       string  `json:"owner"`
	Reason      string  `json:"reason"`
	Token       int64   `json:"token"`
	RemainingMs float64 `json:"remaining_ms"`
}

type closure struct {
	Cause       string  `json:"cause"`
	Owner       string  `json:"owner"`
	Reason      string  `json:"reason"`
	RemainingMs float64 `json:"remaining_ms"`
}

type permitUsage struct {
	Limit      int  `json:"limit"`
	Used       int  `json:"used"`
	IsLimitSet bool `json:"is_limit_set"`
}

type observation struct {
	Holder      *holder      `json:"holder"`
	Closure     *closure     `json:"closure"`
	PermitUsage *permitUsage `json:"permit_usage"`
}

type previousLimit struct {
	PreviousLimit *int `json:"previous_limit"`
}

type failure struct {
	Class        string   `json:"class"`
	Message      string   `json:"message"`
	Holders      []holder `json:"holders,omitempty"`
	RetryAfterMs *float64 `json:"retry_after_ms"`
	Reason       *string  `json:"reason"`
}

type response struct {
	ID    int64    `json:"id"`
	AtMs  float64  `json:"at_ms"`
	OK    any      `json:"ok"`
	Error *failure `json:"error,omitempty"`
}

type event struct {
	Event  string   `json:"event"`
	AtMs   float64  `json:"at_ms"`
	Error  *failure `json:"error,omitempty"`
	Lease  string   `json:"lease,omitempty"`
	Reason string   `json:"reason,omitempty"`
}

type queuedEvent struct {
	Event       string   `json:"event"`
	AtMs        float64  `json:"at_ms"`
	Call        int64    `json:"call"`
	Position    int      `json:"position"`
	QueueLength int      `json:"queue_length"`
	Holders     []holder `json:"holders"`
	Closure     *closure `json:"closure"`
}

// errorClasses maps errors to their names, which all SDKs share.
var errorClasses = []struct {
	err   error
	class string
}{
	{leasehold.ErrHeld, "Held"},
	{leasehold.ErrWaitTimeout, "WaitTimeout"},
	{leasehold.ErrLeaseLost, "LeaseLost"},
	{leasehold.ErrLimitMismatch, "LimitMismatch"},
	{leasehold.ErrUpgradeDenied, "UpgradeDenied"},
	{leasehold.ErrInvalid, "Invalid"},
	{leasehold.ErrQueueFull, "QueueFull"},
	{leasehold.ErrQuotaExceeded, "QuotaExceeded"},
	{leasehold.ErrStoreFull, "StoreFull"},
	{leasehold.ErrUnsupportedByStore, "UnsupportedByStore"},
	{leasehold.ErrUnauthenticated, "Unauthenticated"},
	{leasehold.ErrPermissionDenied, "PermissionDenied"},
	{leasehold.ErrUnavailable, "Unavailable"},
	{leasehold.ErrStoreRecovering, "StoreRecovering"},
	{leasehold.ErrInternal, "Internal"},
	{leasehold.ErrClosed, "Closed"},
	{leasehold.ErrOther, "Other"},
	{leasehold.ErrUnconfirmed, "Unconfirmed"},
	{leasehold.ErrRefused, "Refused"},
	{leasehold.ErrNoEndpoint, "NoEndpoint"},
	{leasehold.ErrInvalidEndpoint, "InvalidEndpoint"},
	{leasehold.ErrInvalidCredential, "InvalidCredential"},
	{leasehold.ErrInsecureToken, "InsecureToken"},
	{leasehold.ErrInvalidOwner, "InvalidOwner"},
	{leasehold.ErrCredentialRefused, "CredentialRefused"},
	{leasehold.ErrUnreachable, "Unreachable"},
	{context.Canceled, "Cancelled"},
}

var lostReasonNames = map[leasehold.LostReason]string{
	leasehold.LostExpired:           "Expired",
	leasehold.LostRevoked:           "Revoked",
	leasehold.LostByStore:           "StoreLost",
	leasehold.LostMaxHold:           "MaxHold",
	leasehold.LostReleased:          "Released",
	leasehold.LostMoved:             "Moved",
	leasehold.LostCredentialExpired: "CredentialExpired",
	leasehold.LostClosed:            "Closed",
	leasehold.LostOther:             "Other",
}

var closureCauseNames = map[leasehold.ClosureCause]string{
	leasehold.ClosureLockDelay: "lock_delay",
	leasehold.ClosureAtLeast:   "at_least",
	leasehold.ClosureOperator:  "operator",
}

func failureOf(err error) *failure {
	f := &failure{Message: err.Error()}
	for _, class := range errorClasses {
		if errors.Is(err, class.err) {
			f.Class = class.class
		}
	}
	if f.Class == "" {
		panic("an error without a class: " + err.Error())
	}
	var detailed *leasehold.Error
	if errors.As(err, &detailed) {
		f.Holders = holdersOf(detailed.Holders)
		if detailed.RetryAfter > 0 {
			after := milliseconds(detailed.RetryAfter)
			f.RetryAfterMs = &after
		}
	}
	var lost *leasehold.LeaseLostError
	if errors.As(err, &lost) {
		f.Reason = reasonOf(lost.Reason)
	}
	return f
}

func stateOf(named namedLease) lease {
	state := lease{LeaseID: named.lease.ID(), Valid: named.lease.IsValid()}
	for _, target := range named.targets {
		token, _ := named.lease.FencingTokenOf(target)
		state.Tokens = append(state.Tokens, token)
	}
	state.RemainingMs = milliseconds(named.lease.Remaining())
	state.LostReason = reasonOf(named.lease.LostReason())
	return state
}

func reasonOf(reason leasehold.LostReason) *string {
	if reason == 0 {
		return nil
	}
	name := lostReasonNames[reason]
	return &name
}

func holderOf(source leasehold.Holder) holder {
	return holder{source.LeaseID, source.Owner, source.Reason, source.FencingToken, milliseconds(source.Remaining)}
}

func holdersOf(sources []leasehold.Holder) []holder {
	holders := make([]holder, len(sources))
	for i, source := range sources {
		holders[i] = holderOf(source)
	}
	return holders
}

func closureOf(source *leasehold.Closure) *closure {
	if source == nil {
		return nil
	}
	return &closure{closureCauseNames[source.Cause], source.Owner, source.Reason, milliseconds(source.Remaining)}
}

// reply writes the response to a command.
func reply(c command, atMs float64, ok any, err error) {
	if err != nil {
		writeLine(response{ID: c.ID, AtMs: atMs, Error: failureOf(err)})
		return
	}
	writeLine(response{ID: c.ID, AtMs: atMs, OK: ok})
}

var outputMutex sync.Mutex

// writeLine writes a line to the test runner.
func writeLine(line any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	outputMutex.Lock()
	defer outputMutex.Unlock()
	if _, err := os.Stdout.Write(append(text, '\n')); err != nil {
		panic(err)
	}
}
