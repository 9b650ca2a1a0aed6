// Programs that use the client: they exit, are killed, and are suspended.

package leasehold_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"leasehold.dev/sdk"
	"leasehold.dev/sdk/internal/testbed"
)

// Programs that tests start as separate processes: the test binary with another main function.
var programs = map[string]func(endpoint string) error{
	"ends": func(endpoint string) error {
		client, lease, err := hold(endpoint, time.Minute)
		if err != nil {
			return err
		}
		defer client.Close()
		return lease.Check()
	},
	"exits": func(endpoint string) error {
		_, _, err := hold(endpoint, shortTTL)
		return err
	},
	"checks": func(endpoint string) error {
		_, lease, err := hold(endpoint, shortTTL)
		if err != nil {
			return err
		}
		// The test writes this line while the process is stopped.
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			return err
		}
		fmt.Println("context", lease.Context().Err())
		fmt.Println("valid", lease.IsValid())
		fmt.Println("release", lease.Release(context.Background()))
		return nil
	},
	"signalled": func(endpoint string) error {
		// Services do the same: the signal ends the context, and thereby the work.
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		client, lease, err := hold(endpoint, time.Minute)
		if err != nil {
			return err
		}
		defer client.Close()
		defer lease.Release(ctx)
		<-ctx.Done()
		return nil
	},
	"computes": func(endpoint string) error {
		_, lease, err := hold(endpoint, shortTTL)
		if err != nil {
			return err
		}
		for until, sum := time.Now().Add(2*shortTTL), 0; time.Now().Before(until); {
			for i := range 1_000_000 {
				sum += i
			}
		}
		fmt.Println("valid", lease.IsValid())
		return nil
	},
}

func hold(endpoint string, ttl time.Duration) (*leasehold.Client, *leasehold.Lease, error) {
	client, err := leasehold.New(endpoint, leasehold.WithOwner("program"))
	if err != nil {
		return nil, nil, err
	}
	lease, err := client.Lock(context.Background(), "a", leasehold.WithTTL(ttl))
	if err != nil {
		return nil, nil, err
	}
	fmt.Println("held")
	return client, lease, nil
}

// startProgram starts a program and waits until it holds its lock.
func startProgram(t *testing.T, name, endpoint string, env ...string) *testbed.Process {
	t.Helper()
	env = append(env, "LEASEHOLD_TEST_PROGRAM="+name, "LEASEHOLD_TEST_ENDPOINT="+endpoint)
	process, err := testbed.Start(env, os.Args[0])
	ok(t, err)
	t.Cleanup(process.Kill)
	_, err = process.WaitForLine("^held$")
	ok(t, err)
	return process
}

func TestAnOrderlyExitReleasesTheLock(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	process := startProgram(t, "ends", broker.URL())
	code, err := process.WaitForExit()
	ok(t, err)
	assert(t, code == 0, "%d", code)
	lockAndRelease(t, clientOf(t, broker.URL()), "a")
}

func TestTheLeaseOfAProgramThatHasExitedExpires(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"exits", "checks"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := startBroker(t, "")
			process := startProgram(t, name, broker.URL())
			if name == "checks" {
				process.Kill()
			}
			_, err := process.WaitForExit()
			ok(t, err)
			client := clientOf(t, broker.URL())
			assert(t, isHeld(t, client, "a"), "the lock was released")
			start := time.Now()
			lockAndRelease(t, client, "a")
			assert(t, time.Since(start) <= expiry+time.Second, "%s", time.Since(start))
		})
	}
}

func TestAProgramThatWasStoppedDetectsTheLossAtItsFirstCheck(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	process := startProgram(t, "checks", broker.URL())
	client := clientOf(t, broker.URL())
	rival := startLock(t.Context(), client, "a")
	waitQueueLength(t, client, "a", 1)
	ok(t, process.Pause())
	next := rival.waitGranted(t)
	ok(t, process.WriteLine("check"))
	ok(t, process.Resume())
	for _, want := range []string{"^context context canceled$", "^valid false$", "^release .*no renewal was confirmed"} {
		_, err := process.WaitForLine(want)
		ok(t, err)
	}
	assert(t, next.IsValid(), "the lost lease released the lock of the next holder")
	release(t, next)
}

func TestAComputingProgramKeepsItsLock(t *testing.T) {
	t.Parallel()
	process := startProgram(t, "computes", startBroker(t, "").URL(), "GOMAXPROCS=1")
	_, err := process.WaitForLine("^valid true$")
	ok(t, err)
}

func TestASignalEndsTheWorkAndReleasesTheLock(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	process := startProgram(t, "signalled", broker.URL())
	ok(t, process.Signal(syscall.SIGTERM))
	code, err := process.WaitForExit()
	ok(t, err)
	assert(t, code == 0, "%d", code)
	lockAndRelease(t, clientOf(t, broker.URL()), "a")
}
