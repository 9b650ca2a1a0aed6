package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"leasehold.dev/sdk"
)

// kept is a lease under its name.
type kept struct {
	lease   *leasehold.Lease
	targets []leasehold.Target
}

// probe is what the commands speak of.
type probe struct {
	client *leasehold.Client

	mu     sync.Mutex
	leases map[string]kept
	// open are the acquires under way.
	open map[int64]context.CancelFunc
}

func newProbe(client *leasehold.Client) *probe {
	return &probe{client: client, leases: map[string]kept{}, open: map[int64]context.CancelFunc{}}
}

// begin does a command, or has it done while the next ones are read.
func (p *probe) begin(c command) error {
	switch c.Do {
	case "exit":
		// Releases are left out.
		os.Exit(0)
	case "version":
		reply(c, nowMs(), version{"go", leasehold.Version}, nil)
	case "block":
		time.Sleep(millis(c.Ms))
		reply(c, nowMs(), struct{}{}, nil)
	case "state":
		at := nowMs()
		reply(c, at, p.state(c.Lease), nil)
	case "cancel":
		p.mu.Lock()
		// It may have ended by now.
		if cancel := p.open[c.Call]; cancel != nil {
			cancel()
		}
		p.mu.Unlock()
		reply(c, nowMs(), struct{}{}, nil)
	case "acquire", "try_acquire":
		ctx, cancel := context.WithCancel(context.Background())
		p.mu.Lock()
		p.open[c.ID] = cancel
		p.mu.Unlock()
		go p.acquire(ctx, c)
	case "release":
		go p.release(c)
	case "observe":
		go p.observe(c)
	case "shutdown":
		go func() {
			err := p.client.Close()
			reply(c, nowMs(), struct{}{}, err)
		}()
	default:
		return fmt.Errorf("no such command: %s", c.Do)
	}
	return nil
}

func (p *probe) state(name string) lease {
	p.mu.Lock()
	one := p.leases[name]
	p.mu.Unlock()
	return stateOf(one)
}

func (p *probe) acquire(ctx context.Context, c command) {
	targets, options := p.how(c)
	var got *leasehold.Lease
	var err error
	switch {
	case c.Do == "acquire" && len(targets) == 1:
		got, err = p.client.Lock(ctx, targets[0].Name, append(options, as(targets[0])...)...)
	case c.Do == "acquire":
		got, err = p.client.LockAll(ctx, targets, options...)
	case len(targets) == 1:
		got, err = p.client.TryLock(ctx, targets[0].Name, append(options, as(targets[0])...)...)
	default:
		got, err = p.client.TryLockAll(ctx, targets, options...)
	}
	at := nowMs()
	p.mu.Lock()
	delete(p.open, c.ID)
	if err == nil {
		p.leases[c.As] = kept{got, targets}
	}
	p.mu.Unlock()
	switch {
	case err == nil:
		reply(c, at, stateOf(kept{got, targets}), nil)
	case c.Do == "try_acquire" && errors.Is(err, leasehold.ErrHeld):
		reply(c, at, nil, nil)
	default:
		reply(c, at, nil, err)
	}
}

func (p *probe) release(c command) {
	p.mu.Lock()
	one := p.leases[c.Lease]
	p.mu.Unlock()
	err := one.lease.Release(context.Background())
	reply(c, nowMs(), struct{}{}, err)
}

func (p *probe) observe(c command) {
	for leader, err := range p.client.Elect(c.Lock).Observe(context.Background()) {
		at := nowMs()
		seen := observed{}
		if leader != nil {
			one := holderOf(*leader)
			seen.Holder = &one
		}
		reply(c, at, seen, err)
		return
	}
}

// how is what a command says of an acquire.
func (p *probe) how(c command) ([]leasehold.Target, []leasehold.Option) {
	targets := make([]leasehold.Target, len(c.Targets))
	for i, one := range c.Targets {
		targets[i] = leasehold.Target{
			Name: one.Name, Namespace: one.Namespace, Shared: one.Mode == "shared", Permits: one.Permits, Limit: one.Limit,
		}
	}
	options := []leasehold.Option{
		leasehold.WithReason(c.Reason),
		leasehold.WithOnQueue(func(place leasehold.Place) {
			say(queued{"queued", nowMs(), c.ID, place.Position, place.QueueLength, holdersOf(place.Holders)})
		}),
		leasehold.WithOnLost(func(l *leasehold.Lease) {
			say(event{Event: "lost", AtMs: nowMs(), Lease: c.As, Reason: *reasonOf(l.LostReason())})
		}),
	}
	for _, time := range []struct {
		ms     *int64
		option func(time.Duration) leasehold.Option
	}{
		{c.TTLMs, leasehold.WithTTL},
		{c.WaitMs, leasehold.WithWait},
		{c.MaxHoldMs, leasehold.WithMaxHold},
		{c.LockDelayMs, leasehold.WithLockDelay},
		{c.DisconnectGraceMs, leasehold.WithDisconnectGrace},
	} {
		if time.ms != nil {
			options = append(options, time.option(millis(*time.ms)))
		}
	}
	if c.Under != "" {
		p.mu.Lock()
		options = append(options, leasehold.WithUnder(p.leases[c.Under].lease))
		p.mu.Unlock()
	}
	return targets, options
}

// as has the call for one lock take it as the target says.
func as(one leasehold.Target) []leasehold.Option {
	options := []leasehold.Option{leasehold.WithNamespace(one.Namespace)}
	switch {
	case one.Shared:
		options = append(options, leasehold.WithShared())
	case one.Permits != 0:
		options = append(options, leasehold.WithPermits(one.Permits, one.Limit))
	}
	return options
}

func millis(count int64) time.Duration { return time.Duration(count) * time.Millisecond }
