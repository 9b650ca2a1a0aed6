//go:build !linux

package clock

import "time"

var (
	begun   = time.Now()
	elapsed larger
)

func now() time.Duration {
	at := time.Now()
	// Without its monotonic reading a time is that of the wall clock.
	return elapsed.advance(at.Sub(begun), at.Round(0).Sub(begun.Round(0)))
}
