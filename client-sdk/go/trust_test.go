package leasehold

import (
	"testing"
	"time"

	"leasehold.dev/sdk/internal/clock"
)

const testTTL = 10 * time.Second

func TestTheMarginIsATenthButAtLeastHalfASecondAndAtMostAQuarter(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		60 * time.Second: 6 * time.Second,
		4 * time.Second:  500 * time.Millisecond,
		time.Second:      250 * time.Millisecond,
	} {
		if got := margin(ttl); got != want {
			t.Errorf("%s of %s instead of %s", got, ttl, want)
		}
	}
}

func TestTrustEndsAMarginBeforeTheValidity(t *testing.T) {
	trust := newTrust(clock.Now()+testTTL, testTTL)
	left := trust.remaining()
	if trust.loss() != nil || left > testTTL-margin(testTTL) || left < testTTL-margin(testTTL)-time.Second {
		t.Errorf("%s, %v", left, trust.loss())
	}
}

func TestOnceOverTrustIsNotExtended(t *testing.T) {
	// Nobody has asked or ticked before the extension comes.
	trust := newTrust(clock.Now()+margin(testTTL), testTTL)
	if trust.extend(clock.Now()+testTTL, testTTL) {
		t.Error("it was over")
	}
	if loss := trust.loss(); loss == nil || loss.Reason != LostExpired || trust.remaining() != 0 {
		t.Errorf("%v, %s", loss, trust.remaining())
	}
	select {
	case <-trust.over.Done():
	default:
		t.Error("nobody was told")
	}
}

func TestTheFirstReasonStays(t *testing.T) {
	trust := newTrust(clock.Now()+testTTL, testTTL)
	trust.end(&LeaseLostError{Reason: LostByStore})
	trust.end(&LeaseLostError{Reason: LostExpired})
	if loss := trust.loss(); loss.Reason != LostByStore {
		t.Error(loss)
	}
}

func TestAnExtensionNeverShortens(t *testing.T) {
	trust := newTrust(clock.Now()+testTTL, testTTL)
	if !trust.extend(clock.Now()+testTTL/2, testTTL) || trust.remaining() <= testTTL/2 {
		t.Errorf("%s", trust.remaining())
	}
}
