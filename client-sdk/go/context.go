// The context of a lease: it ends with the lock, and code deep inside can make sure of it.

package leasehold

import "context"

type leaseContext struct {
	context.Context
	lease *Lease
}

// heldKey is for the value that is the lease of a lock.
type heldKey struct{ lock lockName }

// Err looks at the clock, so that a process that has stood still does not have to wait until it is told.
func (c *leaseContext) Err() error {
	if loss := c.lease.loss(); loss != nil {
		c.lease.cancel(loss)
	}
	return c.Context.Err()
}

func (c *leaseContext) Value(key any) any {
	if wanted, ok := key.(heldKey); ok {
		for _, held := range c.lease.grip.locks {
			if held.lock == wanted.lock {
				return c.lease
			}
		}
	}
	return c.Context.Value(key)
}

// String shows nothing that is secret.
func (c *leaseContext) String() string { return "context of " + c.lease.String() }

// AssertHeld is the lease under which the running code has this lock: of [Client.Do], or any whose [Lease.Context]
// the context comes from. It fails with [ErrNotHeld] if there is none, and with a [*LeaseLostError] if the lock was
// lost. Of the options only [WithNamespace] counts.
func AssertHeld(ctx context.Context, name string, options ...Option) (*Lease, error) {
	p, err := newPlan("", []Target{{Name: name}}, options)
	if err != nil {
		return nil, err
	}
	lock := p.targets[0].lock()
	lease, ok := ctx.Value(heldKey{lock}).(*Lease)
	if !ok {
		return nil, failed(ErrNotHeld, "the running code does not hold "+lock.String())
	}
	return lease, lease.Check()
}
