package leasehold

import (
	"testing"
	"time"

	"leasehold.dev/sdk/internal/clock"
)

const testTTL = 10 * time.Second

func TestTheSafetyMarginIsATenthAtLeastHalfASecondAtMostAQuarter(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		60 * time.Second: 6 * time.Second,
		4 * time.Second:  500 * time.Millisecond,
		time.Second:      250 * time.Millisecond,
	} {
		if got := safetyMargin(ttl); got != want {
			t.Errorf("%s of %s instead of %s", got, ttl, want)
		}
	}
}

func TestTheValidityEndsASafetyMarginEarly(t *testing.T) {
	validity := newLeaseValidity(clock.Now()+testTTL, testTTL)
	remaining := validity.remaining()
	maximum := testTTL - safetyMargin(testTTL)
	if validity.loss() != nil || remaining > maximum || remaining < maximum-time.Second {
		t.Errorf("%s, %v", remaining, validity.loss())
	}
}

func TestAnEndedValidityIsNotExtended(t *testing.T) {
	// No check and no tick happens before the extension.
	validity := newLeaseValidity(clock.Now()+safetyMargin(testTTL), testTTL)
	if validity.extend(clock.Now()+testTTL, testTTL) {
		t.Error("an ended validity was extended")
	}
	if loss := validity.loss(); loss == nil || loss.Reason != LostExpired || validity.remaining() != 0 {
		t.Errorf("%v, %s", loss, validity.remaining())
	}
	select {
	case <-validity.ended.Done():
	default:
		t.Error("the end was not signalled")
	}
}

func TestTheFirstReasonIsKept(t *testing.T) {
	validity := newLeaseValidity(clock.Now()+testTTL, testTTL)
	validity.expire(&LeaseLostError{Reason: LostByStore})
	validity.expire(&LeaseLostError{Reason: LostExpired})
	if loss := validity.loss(); loss.Reason != LostByStore {
		t.Error(loss)
	}
}

func TestAnExtensionNeverShortensTheValidity(t *testing.T) {
	validity := newLeaseValidity(clock.Now()+testTTL, testTTL)
	if !validity.extend(clock.Now()+testTTL/2, testTTL) || validity.remaining() <= testTTL/2 {
		t.Errorf("%s", validity.remaining())
	}
}
