package main

import (
	"encoding/json"
	"testing"
	"time"

	"leasehold.dev/sdk"
)

func TestAClosureIsAnObjectOrNull(t *testing.T) {
	for _, c := range []struct {
		closure *leasehold.Closure
		want    string
	}{
		{nil, `null`},
		{
			&leasehold.Closure{Cause: leasehold.ClosureLockDelay, Owner: "one", Remaining: 1500 * time.Microsecond},
			`{"cause":"lock_delay","owner":"one","reason":"","remaining_ms":1.5}`,
		},
		{
			&leasehold.Closure{Cause: leasehold.ClosureAtLeast, Owner: "one", Reason: "nightly"},
			`{"cause":"at_least","owner":"one","reason":"nightly","remaining_ms":0}`,
		},
		{
			&leasehold.Closure{Cause: leasehold.ClosureOperator, Owner: "ops"},
			`{"cause":"operator","owner":"ops","reason":"","remaining_ms":0}`,
		},
	} {
		text, err := json.Marshal(closureOf(c.closure))
		if err != nil || string(text) != c.want {
			t.Errorf("%s instead of %s: %v", text, c.want, err)
		}
	}
}
