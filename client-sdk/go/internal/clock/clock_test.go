package clock

import (
	"testing"
	"time"
)

func TestASuspendCountsThoughTheMonotonicClockStoodStill(t *testing.T) {
	c := &larger{monotonic: 0, wall: 100}
	steps(t, c, [][3]time.Duration{{1, 101, 1}, {1, 401, 301}})
}

func TestAWallClockSetBackDoesNotStopIt(t *testing.T) {
	steps(t, &larger{}, [][3]time.Duration{{1, 3_601, 3_601}, {2, 2, 3_602}, {3, 3, 3_603}})
}

func steps(t *testing.T, c *larger, readings [][3]time.Duration) {
	t.Helper()
	for _, one := range readings {
		if got := c.advance(one[0], one[1]); got != one[2] {
			t.Errorf("%d instead of %d", got, one[2])
		}
	}
}

func TestItGoesOn(t *testing.T) {
	earlier := Now()
	if later := Now(); earlier <= 0 || later < earlier {
		t.Errorf("%s after %s", later, earlier)
	}
}
