package main

import (
	"encoding/binary"
	"os"
	"time"

	"leasehold.dev/sdk/internal/clock"
)

// setAhead has the clock of this process run ahead by as many seconds as stand in the file: the suite plays a suspend
// so. For other languages a preloaded library does that, but a Go program does not call libc for its clock.
func setAhead(path string) error {
	if path == "" {
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	real := clock.Now
	clock.Now = func() time.Duration {
		var seconds [8]byte
		if _, err := file.ReadAt(seconds[:], 0); err != nil {
			panic(err)
		}
		return real() + time.Duration(binary.LittleEndian.Uint64(seconds[:]))*time.Second
	}
	return nil
}

func nowMs() float64 { return ms(clock.Now()) }

func ms(length time.Duration) float64 { return float64(length) / float64(time.Millisecond) }
