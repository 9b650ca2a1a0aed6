package clock

import (
	"testing"
	"time"
)

func TestASuspendCountsIfTheMonotonicClockStops(t *testing.T) {
	c := &suspendAwareClock{monotonic: 0, wall: 100}
	assertReadings(t, c, [][3]time.Duration{{1, 101, 1}, {1, 401, 301}})
}

func TestAWallClockSetBackDoesNotStopTheClock(t *testing.T) {
	assertReadings(t, &suspendAwareClock{}, [][3]time.Duration{{1, 3_601, 3_601}, {2, 2, 3_602}, {3, 3, 3_603}})
}

func assertReadings(t *testing.T, c *suspendAwareClock, readings [][3]time.Duration) {
	t.Helper()
	for _, reading := range readings {
		if got := c.advance(reading[0], reading[1]); got != reading[2] {
			t.Errorf("%d instead of %d", got, reading[2])
		}
	}
}

func TestTheClockAdvances(t *testing.T) {
	earlier := Now()
	if later := Now(); earlier <= 0 || later < earlier {
		t.Errorf("%s after %s", later, earlier)
	}
}
