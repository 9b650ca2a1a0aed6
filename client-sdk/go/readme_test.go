// The code in README.md is code of programs that are compiled and run here.

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
	assert(t, err == nil, "%s", output)
	broker := startBroker(t, "")
	client := clientOf(t, broker.URL())
	held := lock(t, client, "orders/42")
	process, err := testbed.Start(nil, binary, broker.URL())
	ok(t, err)
	t.Cleanup(process.Kill)
	waitQueueLength(t, client, "orders/42", 1)
	release(t, held)
	_, err = process.WaitForLine("washers written with fencing token [1-9][0-9]*")
	ok(t, err)
	code, err := process.WaitForExit()
	ok(t, err)
	assert(t, code == 0 && lockAndRelease(t, client, "orders/42") > held.FencingToken(), "%d", code)
}

// TestTheCallsOfTheReadme contains every line of the table in README.md.
func TestTheCallsOfTheReadme(t *testing.T) {
	t.Parallel()
	broker := startTestBroker(t)
	client, ctx := broker.Client("one"), t.Context()
	stop := func(*leasehold.Lease) {}

	lease, err := client.TryLock(ctx, "a")
	ok(t, err)
	_, err = client.TryLock(ctx, "a", leasehold.WithAttempts(5, 10*time.Millisecond))
	assert(t, errors.Is(err, leasehold.ErrHeld), "%v", err)
	var detailed *leasehold.Error
	assert(t, errors.As(err, &detailed) && len(detailed.Holders) == 1 && detailed.RetryAfter > 0, "%v", err)
	added, err := client.Lock(ctx, "b", leasehold.WithUnder(lease))
	ok(t, err)
	_, err = client.Get(ctx, "a")
	ok(t, err)
	_, err = client.SetLimit(ctx, "pool", 16)
	ok(t, err)
	_, err = client.RemoveLimit(ctx, "pool")
	ok(t, err)
	ok(t, lease.Check())
	assert(t, lease.Context().Err() == nil && lease.LostReason() == 0 && added.FencingToken() > 0, "%v", lease)
	release(t, added, lease)
	for _, options := range [][]leasehold.Option{
		{leasehold.WithShared()},
		{leasehold.WithPermits(2, 8), leasehold.WithOnLost(stop)},
		{leasehold.WithOnQueue(func(position leasehold.QueuePosition) { t.Log(position.Position) })},
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
	lead, err := client.Elect("job").Campaign(ctx)
	ok(t, err)
	for leader, err := range client.Elect("job").Observe(ctx) {
		assert(t, err == nil && leader.LeaseID == lead.ID(), "%v", err)
		break
	}
	ok(t, client.Close())
}

func TestTheCodeOfTheReadmeIsCompiled(t *testing.T) {
	t.Parallel()
	readme := readFile(t, "README.md")
	programs := ""
	for _, file := range []string{"examples/orders/main.go", "leaseholdtest/example_test.go", "readme_test.go"} {
		programs += trimIndentation(readFile(t, file))
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(readme, -1)
	assert(t, len(blocks) == 2, "%d blocks", len(blocks))
	for _, block := range blocks {
		for part := range strings.SplitSeq(block[1], "\n…\n") {
			assert(t, strings.Contains(programs, trimIndentation(part)), "not in a program: %s", part)
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
				assert(t, strings.Contains(programs, strings.TrimSpace(part)), "not in a program: %s", code[1])
			}
		}
	}
	assert(t, calls > 15, "%d calls", calls)
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	ok(t, err)
	return string(content)
}

// trimIndentation removes the indentation of all lines.
func trimIndentation(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}
