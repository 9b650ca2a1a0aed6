package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

func now() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &at); err != nil {
		panic("leasehold: every Linux since 2.6.39 has CLOCK_BOOTTIME: " + err.Error())
	}
	return time.Duration(at.Nano())
}
