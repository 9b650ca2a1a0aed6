// Orders reconciles the rows of an order while it holds the order's lock.
//
//	go run ./examples/orders http://127.0.0.1:7070
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"leasehold.dev/sdk"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: orders ENDPOINTS")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(endpoints string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client, err := leasehold.New(endpoints) // "http://a:7070,http://b:7070"
	if err != nil {
		return err
	}
	defer client.Close()
	return reconcile(ctx, client, []string{"bolts", "nuts", "washers"})
}

func reconcile(ctx context.Context, client *leasehold.Client, rows []string) error {
	lease, err := client.Lock(ctx, "orders/42", leasehold.WithTTL(30*time.Second),
		leasehold.WithWait(10*time.Second), leasehold.WithReason("nightly reconcile"))
	if err != nil {
		return err
	}
	defer lease.Release(ctx) // also when ctx has ended

	for _, row := range rows {
		if err := lease.Check(); err != nil {
			return err // *leasehold.LeaseLostError
		}
		if err := write(lease.Context(), row, lease.FencingToken()); err != nil {
			return err
		}
	}
	return nil
}

// write stands for a request to the protected resource, which rejects a token that is smaller than one it has received.
func write(ctx context.Context, row string, fencingToken int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	fmt.Println(row, "written with fencing token", fencingToken)
	return nil
}
