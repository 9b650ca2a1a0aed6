// The context of a lease, which ends when the lock is lost or released, and its lookup with AssertHeld.

package leasehold

import "context"

type leaseContext struct {
	context.Context
	lease *Lease
}

// leaseKey is the context key whose value is the lease that holds the lock.
type leaseKey struct{ lock lockName }

// Err checks the clock, so that a process that was suspended detects the loss before the client's next tick.
func (c *leaseContext) Err() error {
	if loss := c.lease.loss(); loss != nil {
		c.lease.cancel(loss)
	}
	return c.Context.Err()
}

func (c *leaseContext) Value(key any) any {
	if requested, ok := key.(leaseKey); ok {
		for _, grant := range c.lease.handle.grants {
			if grant.lock == requested.lock {
				return c.lease
			}
		}
	}
	return c.Context.Value(key)
}

// String returns a description without secrets.
func (c *leaseContext) String() string { return "context of " + c.lease.String() }

// AssertHeld returns the lease of this lock from ctx. The context must come from [Client.Do] or from a [Lease.Context].
// It fails with [ErrNotHeld] if ctx has no lease of the lock, and with a [*LeaseLostError] if the lock was lost. Of the
// options only [WithNamespace] has an effect.
func AssertHeld(ctx context.Context, name string, options ...Option) (*Lease, error) {
	opts, err := newAcquireOptions("", []Target{{Name: name}}, options)
	if err != nil {
		return nil, err
	}
	lock := opts.targets[0].lock()
	lease, ok := ctx.Value(leaseKey{lock}).(*Lease)
	if !ok {
		return nil, newError(ErrNotHeld, "the running code does not hold "+lock.String())
	}
	return lease, lease.Check()
}
