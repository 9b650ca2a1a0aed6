// Peers in Go: etcd's Lock service, redsync and bsm/redislock. Arguments and output: tests/peers/README.md.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// atOnce is the number of concurrent acquires of locks that are then held.
const atOnce = 64

// locker is one caller of a lock system.
type locker interface {
	// lock waits until the lock is held.
	lock(ctx context.Context, name string) error
	// unlock releases the lock that lock acquired last.
	unlock(ctx context.Context) error
}

// opener creates the caller with this number.
type opener func(caller int) (locker, error)

var systems = map[string]func(endpoint string) opener{
	"etcd":      etcd,
	"redsync":   withRedsync,
	"redislock": withRedislock,
}

type measured struct {
	Done          int     `json:"done"`
	LatenciesUs   []int64 `json:"latencies_us"`
	Counts        []int   `json:"counts"`
	LongestWaitUs int64   `json:"longest_wait_us"`
}

// window is the measured period.
type window struct{ begin, end time.Time }

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 6 {
		return fmt.Errorf("6 arguments are needed, not %d", len(args))
	}
	system, ok := systems[args[0]]
	if !ok {
		return fmt.Errorf("no such system: %s", args[0])
	}
	var numbers [3]int
	for at, text := range args[3:] {
		number, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		numbers[at] = number
	}
	open, ctx := system(args[1]), context.Background()
	count, warmUp := numbers[0], time.Duration(numbers[1])*time.Millisecond
	length := time.Duration(numbers[2]) * time.Millisecond
	switch args[2] {
	case "pairs", "hot":
		callers, err := openAll(open, count)
		if err != nil {
			return err
		}
		begin := time.Now().Add(warmUp)
		scenario := pairs
		if args[2] == "hot" {
			scenario = hot
		}
		return tell(scenario(ctx, callers, window{begin, begin.Add(length)}))
	case "idle":
		return tell(idle(ctx, open, count, length))
	case "hold":
		if err := crash(ctx, open); err != nil {
			return err
		}
		fmt.Println("held")
		select {}
	case "wait":
		fmt.Println("waiting")
		if err := crash(ctx, open); err != nil {
			return err
		}
		fmt.Println("granted")
		return nil
	default:
		return fmt.Errorf("no such scenario: %s", args[2])
	}
}

func tell(result measured, err error) error {
	if err != nil {
		return err
	}
	// Encodes empty lists as [] and not as null.
	result.LatenciesUs = append([]int64{}, some(result.LatenciesUs)...)
	result.Counts = append([]int{}, result.Counts...)
	return json.NewEncoder(os.Stdout).Encode(result)
}

func crash(ctx context.Context, open opener) error {
	caller, err := open(0)
	if err != nil {
		return err
	}
	return caller.lock(ctx, "crash")
}

// openAll opens callers concurrently, because some systems send a request to a server for each caller.
func openAll(open opener, count int) ([]locker, error) {
	callers := make([]locker, count)
	err := each(count, atOnce, func(at int) (err error) {
		callers[at], err = open(at)
		return err
	})
	return callers, err
}

// pairs lets each caller acquire and release its own lock repeatedly.
func pairs(ctx context.Context, callers []locker, in window) (measured, error) {
	latencies := make([][]int64, len(callers))
	go begins(in)
	err := each(len(callers), len(callers), func(at int) error {
		name := "pairs-" + strconv.Itoa(at)
		for {
			sent := time.Now()
			if sent.After(in.end) {
				return nil
			}
			if err := callers[at].lock(ctx, name); err != nil {
				return err
			}
			if err := callers[at].unlock(ctx); err != nil {
				return err
			}
			if sent.After(in.begin) {
				latencies[at] = append(latencies[at], time.Since(sent).Microseconds())
			}
		}
	})
	all := slices.Concat(latencies...)
	return measured{Done: len(all), LatenciesUs: all}, err
}

// hot lets all callers acquire and release one lock repeatedly, and returns the result at the end of the window.
// Callers that still wait are abandoned.
func hot(ctx context.Context, callers []locker, in window) (measured, error) {
	var mutex sync.Mutex
	last, released := -1, time.Time{}
	result := measured{Counts: make([]int, len(callers))}
	failed := make(chan error, 1)
	// The name is unique, so that a lock of an earlier run does not interfere.
	name := fmt.Sprintf("hot-%d", os.Getpid())
	granted := func(at int, sent time.Time) {
		mutex.Lock()
		defer mutex.Unlock()
		now := time.Now()
		if now.After(in.begin) && now.Before(in.end) {
			if last != at && last >= 0 {
				result.Done++
				result.LatenciesUs = append(result.LatenciesUs, now.Sub(released).Microseconds())
			}
			result.Counts[at]++
			result.LongestWaitUs = max(result.LongestWaitUs, now.Sub(sent).Microseconds())
		}
		last, released = at, time.Now()
	}
	go func() {
		failed <- each(len(callers), len(callers), func(at int) error {
			for {
				sent := time.Now()
				if err := callers[at].lock(ctx, name); err != nil {
					return err
				}
				granted(at, sent)
				if err := callers[at].unlock(ctx); err != nil {
					return err
				}
			}
		})
	}()
	go begins(in)
	select {
	case err := <-failed:
		return result, err
	case <-time.After(time.Until(in.end)):
		// The mutex stays locked until the end of the process, so that the result does not change.
		mutex.Lock()
		return result, nil
	}
}

// idle acquires locks and holds them.
func idle(ctx context.Context, open opener, count int, length time.Duration) (measured, error) {
	err := each(count, atOnce, func(at int) error {
		caller, err := open(at)
		if err != nil {
			return err
		}
		return caller.lock(ctx, "idle-"+strconv.Itoa(at))
	})
	if err != nil {
		return measured{}, err
	}
	fmt.Println("begin")
	time.Sleep(length)
	return measured{Done: count}, nil
}

func begins(in window) {
	time.Sleep(time.Until(in.begin))
	fmt.Println("begin")
}

// each calls work for each number below count, at most `most` calls at a time, and returns the first error.
func each(count, most int, work func(at int) error) error {
	numbers, errs := make(chan int, count), make(chan error, most)
	for at := range count {
		numbers <- at
	}
	close(numbers)
	for range most {
		go func() {
			for at := range numbers {
				if err := work(at); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range most {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// some returns at most 20,000 of the latencies, evenly chosen.
func some(all []int64) []int64 {
	const most = 20_000
	if len(all) <= most {
		return all
	}
	chosen := make([]int64, 0, most)
	for at := range most {
		chosen = append(chosen, all[at*len(all)/most])
	}
	return chosen
}
