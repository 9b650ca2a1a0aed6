//go:build !linux

package clock

import "time"

var (
	start = time.Now()
	clock suspendAwareClock
)

func now() time.Duration {
	at := time.Now()
	// Round(0) removes the monotonic reading, so that Sub uses the wall clock.
	return clock.advance(at.Sub(start), at.Round(0).Sub(start.Round(0)))
}
