// Programs that use the client: they end, are killed, and stand still.

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

// The programs that tests run, in processes of their own: this one with another main function.
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
	"looks": func(endpoint string) error {
		_, lease, err := hold(endpoint, shortTTL)
		if err != nil {
			return err
		}
		// What it is to do lies here when it goes on.
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			return err
		}
		fmt.Println("context", lease.Context().Err())
		fmt.Println("valid", lease.IsValid())
		fmt.Println("release", lease.Release(context.Background()))
		return nil
	},
	"signalled": func(endpoint string) error {
		// As services do: the context ends with the signal, and the work with it.
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

// program starts one of them, and waits until it has its lock.
func program(t *testing.T, name, endpoint string, env ...string) *testbed.Process {
	t.Helper()
	env = append(env, "LEASEHOLD_TEST_PROGRAM="+name, "LEASEHOLD_TEST_ENDPOINT="+endpoint)
	process, err := testbed.Start(env, os.Args[0])
	ok(t, err)
	t.Cleanup(process.Kill)
	_, err = process.Line("^held$")
	ok(t, err)
	return process
}

func TestTheGoodEndOfAProgramGivesBack(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	process := program(t, "ends", broker.URL())
	code, err := process.Ended()
	ok(t, err)
	is(t, code == 0, "%d", code)
	takes(t, clientOf(t, broker.URL()), "a")
}

func TestALockOfAProgramThatIsGoneRunsOut(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"exits", "looks"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := startBroker(t, "")
			process := program(t, name, broker.URL())
			if name == "looks" {
				process.Kill()
			}
			_, err := process.Ended()
			ok(t, err)
			client := clientOf(t, broker.URL())
			is(t, isTaken(t, client, "a"), "nobody has given it back")
			begun := time.Now()
			takes(t, client, "a")
			is(t, time.Since(begun) <= expiry+time.Second, "%s", time.Since(begun))
		})
	}
}

func TestAProgramThatStoodStillKnowsAtItsFirstLook(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	process := program(t, "looks", broker.URL())
	client := clientOf(t, broker.URL())
	rival := asks(t.Context(), client, "a")
	inLine(t, client, "a", 1)
	ok(t, process.Pause())
	next := rival.granted(t)
	ok(t, process.Say("look"))
	ok(t, process.Resume())
	for _, want := range []string{"^context context canceled$", "^valid false$", "^release .*no renewal was confirmed"} {
		_, err := process.Line(want)
		ok(t, err)
	}
	is(t, next.IsValid(), "a lost lease gives nothing back")
	release(t, next)
}

func TestAComputingProgramKeepsItsLock(t *testing.T) {
	t.Parallel()
	process := program(t, "computes", startBroker(t, "").URL(), "GOMAXPROCS=1")
	_, err := process.Line("^valid true$")
	ok(t, err)
}

func TestASignalEndsTheWorkAndGivesBack(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, "")
	process := program(t, "signalled", broker.URL())
	ok(t, process.Signal(syscall.SIGTERM))
	code, err := process.Ended()
	ok(t, err)
	is(t, code == 0, "%d", code)
	takes(t, clientOf(t, broker.URL()), "a")
}
