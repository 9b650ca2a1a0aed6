// Benchmark measures pairs of acquire and release beside redsync and redislock on the same Redis, in alternating
// rounds. It prints tables.
//
//	go run . --rounds 5 --seconds 3
//
// LEASEHOLD_SERVER names the broker. Only figures of a release build on an idle machine are meaningful.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"leasehold.dev/sdk/internal/testbed"
)

func main() {
	rounds := flag.Int("rounds", 5, "of each contender")
	seconds := flag.Float64("seconds", 3, "of each round")
	flag.Parse()
	if err := run(*rounds, time.Duration(*seconds*float64(time.Second))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(rounds int, length time.Duration) error {
	store, err := testbed.StartRedis()
	if err != nil {
		return err
	}
	defer store.Kill()
	broker, err := testbed.StartBroker(store.URL())
	if err != nil {
		return err
	}
	defer broker.Kill()
	contenders, closeAll, err := contenders(broker, store)
	if err != nil {
		return err
	}
	defer closeAll()
	fmt.Printf("%s, %d cores, %s\n", processor(), runtime.NumCPU(), runtime.Version())
	for _, isHot := range []bool{false, true} {
		for _, callers := range []int{1, 64} {
			results := make([][]roundResult, len(contenders))
			for range rounds {
				for i, contender := range contenders {
					result, err := runRound(contender, callers, length, isHot)
					if err != nil {
						return fmt.Errorf("%s: %w", contender.name, err)
					}
					results[i] = append(results[i], result)
				}
			}
			printTable(contenders, results, callers, isHot)
		}
	}
	return nil
}

// printTable prints the medians of the rounds.
func printTable(contenders []contender, results [][]roundResult, callers int, isHot bool) {
	columns, scenario := []string{"", "pairs/s"}, "a lock for each"
	if isHot {
		columns, scenario = append(columns, "hand-offs/s", "longest wait", "Jain's index"), "one lock for all"
	}
	fmt.Printf("\n%d callers, %s\n\n| %s |\n|%s\n", callers, scenario, strings.Join(columns, " | "),
		strings.Repeat("---|", len(columns)))
	for i, contender := range contenders {
		median := func(figure func(roundResult) float64) float64 {
			var figures []float64
			for _, result := range results[i] {
				figures = append(figures, figure(result))
			}
			slices.Sort(figures)
			return (figures[len(figures)/2] + figures[(len(figures)-1)/2]) / 2
		}
		fmt.Printf("| %s | %.0f |", contender.name, median(roundResult.pairsPerSecond))
		if isHot {
			fmt.Printf(" %.0f | %.0f ms | %.3f |", median(roundResult.handOffsPerSecond), median(roundResult.longestWaitMs),
				median(roundResult.fairness))
		}
		fmt.Println()
	}
}

// processor returns the name of the processor, or the architecture if the kernel does not report a name.
func processor() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if key, name, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(name)
		}
	}
	return runtime.GOARCH
}

// runRound runs one round: for the given time, each caller acquires and releases its own lock, or one lock that all
// share.
func runRound(contender contender, callers int, length time.Duration, isHot bool) (roundResult, error) {
	result := roundResult{length: length, pairs: make([]int, callers), lastHolder: -1}
	start, results := make(chan time.Time), make(chan error, callers)
	for caller := range callers {
		name := "bench/hot"
		if !isHot {
			name = fmt.Sprintf("bench/%d", caller)
		}
		go func() {
			until := <-start
			results <- func() error {
				for time.Now().Before(until) {
					startedAt := time.Now()
					release, err := contender.acquire(context.Background(), name)
					if err != nil {
						return err
					}
					if isHot {
						result.recordAcquire(caller, time.Since(startedAt))
					}
					if err := release(); err != nil {
						return err
					}
					result.pairs[caller]++
				}
				return nil
			}()
		}()
	}
	until := time.Now().Add(length)
	for range callers {
		start <- until
	}
	var firstErr error
	for range callers {
		if err := <-results; firstErr == nil {
			firstErr = err
		}
	}
	return result, firstErr
}
