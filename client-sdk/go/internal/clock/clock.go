// Package clock provides the clock for the validity of leases. It runs on while the machine is suspended.
package clock

import (
	"sync"
	"time"
)

// Now returns the time since a fixed moment in the past. It is a variable so that a program can replace it before it
// creates a client, to simulate a suspend. The library never replaces it.
var Now = now

// suspendAwareClock is the clock of systems without a clock that runs through a suspend. From reading to reading it
// advances by the larger step of the monotonic and the wall clock. It never goes back, and is never slower than the
// monotonic clock, whatever the wall clock is set to. A wall clock that is set ahead ends validity early.
type suspendAwareClock struct {
	mu              sync.Mutex
	monotonic, wall time.Duration
	elapsed         time.Duration
}

func (c *suspendAwareClock) advance(monotonic, wall time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.elapsed += max(monotonic-c.monotonic, wall-c.wall, 0)
	c.monotonic, c.wall = monotonic, wall
	return c.elapsed
}
