// Package leasehold is the Go client of Leasehold, a lock broker: a lease that knows when it has lost the lock.
//
//	client, err := leasehold.New("http://127.0.0.1:7070")
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//
//	lease, err := client.Lock(ctx, "orders/42", leasehold.WithWait(10*time.Second))
//	if err != nil {
//		return err
//	}
//	defer lease.Release(ctx)
//	return write(lease.Context(), lease.FencingToken())
//
// What can be relied on: [Lease.IsValid] is false, and stays false, before anybody else can get the lock, also
// after this process or its machine stood still. That is not enough to protect data: between the check and the
// write the process may stand still. Send the fencing token with every write, and refuse smaller ones there.
package leasehold

// Version of this client.
const Version = "0.1.0"
