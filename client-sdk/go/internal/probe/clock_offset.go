package main

import (
	"encoding/binary"
	"os"
	"time"

	"leasehold.dev/sdk/internal/clock"
)

// offsetClock lets the clock of this process run ahead by the number of seconds in the file, by which the suite
// simulates a suspend. For other languages a preloaded library does that, but a Go program does not call libc for its
// clock.
func offsetClock(path string) error {
	if path == "" {
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	machineClock := clock.Now
	clock.Now = func() time.Duration {
		var seconds [8]byte
		if _, err := file.ReadAt(seconds[:], 0); err != nil {
			panic(err)
		}
		return machineClock() + time.Duration(binary.LittleEndian.Uint64(seconds[:]))*time.Second
	}
	return nil
}

func nowMs() float64 { return milliseconds(clock.Now()) }

func milliseconds(length time.Duration) float64 { return float64(length) / float64(time.Millisecond) }
