// Package leasehold is the Go client of Leasehold, a lock broker. A lock is held through a lease, which detects the
// loss of the lock.
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
// [Lease.IsValid] returns false, and keeps returning false, before another caller can acquire the lock. This also holds
// after the process or its machine was suspended. The check alone does not protect data, because the process may be
// suspended between the check and the write. Send the fencing token with every write, and reject smaller tokens there.
package leasehold

// Version is the version of this client.
const Version = "0.1.0"
