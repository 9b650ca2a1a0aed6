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
	Under             string   `json:"under"`
	Reason            string   `json:"reason"`
	Call              int64    `json:"call"`
	Lease             string   `json:"lease"`
	Lock              string   `json:"lock"`
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

type observed struct {
	Holder *holder `json:"holder"`
}

type failure struct {
	Class        string   `json:"class"`
	Message      string   `json:"message"`
	Holders      []holder `json:"holders,omitempty"`
	RetryAfterMs *float64 `json:"retry_after_ms"`
	Reason       *string  `json:"reason"`
}

type answer struct {
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

type queued struct {
	Event       string   `json:"event"`
	AtMs        float64  `json:"at_ms"`
	Call        int64    `json:"call"`
	Position    int      `json:"position"`
	QueueLength int      `json:"queue_length"`
	Holders     []holder `json:"holders"`
}

// The classes of errors in the common spelling.
var classes = []struct {
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

var reasons = map[leasehold.LostReason]string{
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

func failureOf(err error) *failure {
	f := &failure{Message: err.Error()}
	for _, one := range classes {
		if errors.Is(err, one.err) {
			f.Class = one.class
		}
	}
	if f.Class == "" {
		panic("an error of no class: " + err.Error())
	}
	var said *leasehold.Error
	if errors.As(err, &said) {
		f.Holders = holdersOf(said.Holders)
		if said.RetryAfter > 0 {
			after := ms(said.RetryAfter)
			f.RetryAfterMs = &after
		}
	}
	var lost *leasehold.LeaseLostError
	if errors.As(err, &lost) {
		f.Reason = reasonOf(lost.Reason)
	}
	return f
}

func stateOf(one kept) lease {
	state := lease{LeaseID: one.lease.ID(), Valid: one.lease.IsValid()}
	for _, target := range one.targets {
		token, _ := one.lease.FencingTokenOf(target)
		state.Tokens = append(state.Tokens, token)
	}
	state.RemainingMs = ms(one.lease.Remaining())
	state.LostReason = reasonOf(one.lease.LostReason())
	return state
}

func reasonOf(why leasehold.LostReason) *string {
	if why == 0 {
		return nil
	}
	name := reasons[why]
	return &name
}

func holderOf(one leasehold.Holder) holder {
	return holder{one.LeaseID, one.Owner, one.Reason, one.FencingToken, ms(one.Remaining)}
}

func holdersOf(all []leasehold.Holder) []holder {
	holders := make([]holder, len(all))
	for i, one := range all {
		holders[i] = holderOf(one)
	}
	return holders
}

// reply answers a command.
func reply(c command, atMs float64, ok any, err error) {
	if err != nil {
		say(answer{ID: c.ID, AtMs: atMs, Error: failureOf(err)})
		return
	}
	say(answer{ID: c.ID, AtMs: atMs, OK: ok})
}

var saying sync.Mutex

// say is to the runner.
func say(line any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	saying.Lock()
	defer saying.Unlock()
	if _, err := os.Stdout.Write(append(text, '\n')); err != nil {
		panic(err)
	}
}
