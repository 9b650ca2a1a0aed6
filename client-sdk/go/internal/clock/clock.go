// Package clock is the clock that validity is counted on: it runs on while the machine is suspended.
package clock

import (
	"sync"
	"time"
)

// Now is the time since some moment in the past. A variable, so that a program that plays a suspend can
// replace it before it makes a client; nothing in the library does.
var Now = now

// larger is the clock of systems on which none runs through a suspend: from reading to reading the larger
// step of the monotonic and the wall clock. It never goes back, and never slower than the monotonic clock,
// whatever the wall clock is set to; a wall clock that is set ahead ends validity early.
type larger struct {
	mu              sync.Mutex
	monotonic, wall time.Duration
	total           time.Duration
}

func (c *larger) advance(monotonic, wall time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total += max(monotonic-c.monotonic, wall-c.wall, 0)
	c.monotonic, c.wall = monotonic, wall
	return c.total
}
