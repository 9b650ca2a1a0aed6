package leaseholdtest_test

import (
	"context"
	"fmt"

	"leasehold.dev/sdk/leaseholdtest"
)

func Example() {
	ctx := context.Background()
	broker := leaseholdtest.NewBroker()
	defer broker.Close()
	client := broker.Client("test")

	lease, err := client.Lock(ctx, "orders/42")
	fmt.Println(lease.IsValid(), err)
	broker.Lose("orders/42")
	fmt.Println(lease.IsValid(), lease.LostReason())
	// Output:
	// true <nil>
	// false the store lost the lease
}
