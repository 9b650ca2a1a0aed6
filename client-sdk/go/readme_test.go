// The code of README.md is that of programs which are compiled and run here.

package leasehold_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"leasehold.dev/sdk"
	"leasehold.dev/sdk/internal/testbed"
)

func TestTheExampleRuns(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "orders")
	output, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./examples/orders").CombinedOutput()
	is(t, err == nil, "%s", output)
	broker := startBroker(t, "")
	client := clientOf(t, broker.URL())
	held := lock(t, client, "orders/42")
	process, err := testbed.Start(nil, binary, broker.URL())
	ok(t, err)
	t.Cleanup(process.Kill)
	inLine(t, client, "orders/42", 1)
	release(t, held)
	_, err = process.Line("washers written with fencing token [1-9][0-9]*")
	ok(t, err)
	code, err := process.Ended()
	ok(t, err)
	is(t, code == 0 && takes(t, client, "orders/42") > held.FencingToken(), "%d", code)
}

// TestWhatTheReadmeSays has every line of its table.
func TestWhatTheReadmeSays(t *testing.T) {
	t.Parallel()
	broker := startFake(t)
	client, ctx := broker.Client("one"), t.Context()
	stop := func(*leasehold.Lease) {}

	lease, err := client.TryLock(ctx, "a")
	ok(t, err)
	_, err = client.TryLock(ctx, "a", leasehold.WithAttempts(5, 10*time.Millisecond))
	is(t, errors.Is(err, leasehold.ErrHeld), "%v", err)
	var said *leasehold.Error
	is(t, errors.As(err, &said) && len(said.Holders) == 1 && said.RetryAfter > 0, "%v", err)
	added, err := client.Lock(ctx, "b", leasehold.WithUnder(lease))
	ok(t, err)
	_, err = client.Get(ctx, "a")
	ok(t, err)
	ok(t, lease.Check())
	is(t, lease.Context().Err() == nil && lease.LostReason() == 0 && added.FencingToken() > 0, "%v", lease)
	release(t, added, lease)
	for _, options := range [][]leasehold.Option{
		{leasehold.WithShared()},
		{leasehold.WithPermits(2, 8), leasehold.WithOnLost(stop)},
		{leasehold.WithOnQueue(func(place leasehold.Place) { t.Log(place.Position, place.QueueLength) })},
	} {
		release(t, lock(t, client, "a", options...))
	}
	all, err := client.LockAll(ctx, []leasehold.Target{{Name: "a"}, {Name: "b", Shared: true}})
	ok(t, err)
	release(t, all)
	err = client.Do(ctx, "a", func(ctx context.Context, lease *leasehold.Lease) error {
		_, err := leasehold.AssertHeld(ctx, "a")
		return err
	})
	ok(t, err)
	leads, err := client.Elect("job").Campaign(ctx)
	ok(t, err)
	for leader, err := range client.Elect("job").Observe(ctx) {
		is(t, err == nil && leader.LeaseID == leads.ID(), "%v", err)
		break
	}
	ok(t, client.Close())
}

func TestTheCodeOfTheReadmeIsThatOfPrograms(t *testing.T) {
	t.Parallel()
	readme := text(t, "README.md")
	programs := ""
	for _, file := range []string{"examples/orders/main.go", "leaseholdtest/example_test.go", "readme_test.go"} {
		programs += flat(text(t, file))
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(readme, -1)
	is(t, len(blocks) == 2, "%d blocks", len(blocks))
	for _, block := range blocks {
		for part := range strings.SplitSeq(block[1], "\n…\n") {
			is(t, strings.Contains(programs, flat(part)), "not in a program: %s", part)
		}
	}
	_, table, _ := strings.Cut(readme, "| to | write |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := regexp.MustCompile(`(?m)^\| .* \| (.*) \|$`).FindAllStringSubmatch(table, -1)
	calls := 0
	for _, row := range rows {
		for _, code := range regexp.MustCompile("`([^`]*\\([^`]*)`").FindAllStringSubmatch(row[1], -1) {
			calls++
			for part := range strings.SplitSeq(code[1], "…") {
				is(t, strings.Contains(programs, strings.TrimSpace(part)), "not in a program: %s", code[1])
			}
		}
	}
	is(t, calls > 15, "%d calls", calls)
}

func text(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	ok(t, err)
	return string(content)
}

// flat is without what indents lines.
func flat(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}
