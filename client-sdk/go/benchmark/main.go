// Benchmark takes and gives back locks beside redsync and redislock on the same Redis, in turns; prints tables.
//
//	go run . --rounds 5 --seconds 3
//
// LEASEHOLD_SERVER names the broker; a figure is worth something only of a release build on a quiet machine.
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
	contenders, end, err := contenders(broker, store)
	if err != nil {
		return err
	}
	defer end()
	fmt.Printf("%s, %d cores, %s\n", processor(), runtime.NumCPU(), runtime.Version())
	for _, isHot := range []bool{false, true} {
		for _, callers := range []int{1, 64} {
			found := make([][]visits, len(contenders))
			for range rounds {
				for i, one := range contenders {
					round, err := play(one, callers, length, isHot)
					if err != nil {
						return fmt.Errorf("%s: %w", one.name, err)
					}
					found[i] = append(found[i], round)
				}
			}
			printTable(contenders, found, callers, isHot)
		}
	}
	return nil
}

// printTable prints the medians of the rounds.
func printTable(contenders []contender, found [][]visits, callers int, isHot bool) {
	heads, what := []string{"", "pairs/s"}, "a lock for each"
	if isHot {
		heads, what = append(heads, "hand-offs/s", "longest wait", "Jain's index"), "one lock for all"
	}
	fmt.Printf("\n%d callers, %s\n\n| %s |\n|%s\n", callers, what, strings.Join(heads, " | "),
		strings.Repeat("---|", len(heads)))
	for i, one := range contenders {
		median := func(of func(visits) float64) float64 {
			var figures []float64
			for _, round := range found[i] {
				figures = append(figures, of(round))
			}
			slices.Sort(figures)
			return (figures[len(figures)/2] + figures[(len(figures)-1)/2]) / 2
		}
		fmt.Printf("| %s | %.0f |", one.name, median(visits.pairsPerSecond))
		if isHot {
			fmt.Printf(" %.0f | %.0f ms | %.3f |", median(visits.handOffsPerSecond), median(visits.longestWaitMs),
				median(visits.fairness))
		}
		fmt.Println()
	}
}

// processor is the name of the machine's, where the kernel tells it.
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

// play has so many callers take and give back for so long: a lock for each, or one for all.
func play(one contender, callers int, length time.Duration, isHot bool) (visits, error) {
	v := visits{length: length, pairs: make([]int, callers), lastHolder: -1}
	begin, failed := make(chan time.Time), make(chan error, callers)
	for caller := range callers {
		name := "bench/hot"
		if !isHot {
			name = fmt.Sprintf("bench/%d", caller)
		}
		go func() {
			until := <-begin
			failed <- func() error {
				for time.Now().Before(until) {
					asked := time.Now()
					giveBack, err := one.take(context.Background(), name)
					if err != nil {
						return err
					}
					if isHot {
						v.entered(caller, time.Since(asked))
					}
					if err := giveBack(); err != nil {
						return err
					}
					v.pairs[caller]++
				}
				return nil
			}()
		}()
	}
	until := time.Now().Add(length)
	for range callers {
		begin <- until
	}
	var first error
	for range callers {
		if err := <-failed; first == nil {
			first = err
		}
	}
	return v, first
}
