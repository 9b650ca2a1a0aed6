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

// namedLease is a lease that later commands refer to by name.
type namedLease struct {
	lease   *leasehold.Lease
	targets []leasehold.Target
}

// probe is the state that the commands use.
type probe struct {
	client *leasehold.Client

	mu     sync.Mutex
	leases map[string]namedLease
	// pending is the cancel functions of pending acquires, by command id.
	pending map[int64]context.CancelFunc
}

func newProbe(client *leasehold.Client) *probe {
	return &probe{client: client, leases: map[string]namedLease{}, pending: map[int64]context.CancelFunc{}}
}

// run runs a command, or starts it in a goroutine if it has to wait.
func (p *probe) run(c command) error {
	switch c.Do {
	case "exit":
		// The process exits without releases.
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
		// The acquire may have ended before.
		if cancel := p.pending[c.Call]; cancel != nil {
			cancel()
		}
		p.mu.Unlock()
		reply(c, nowMs(), struct{}{}, nil)
	case "acquire", "try_acquire":
		ctx, cancel := context.WithCancel(context.Background())
		p.mu.Lock()
		p.pending[c.ID] = cancel
		p.mu.Unlock()
		go p.acquire(ctx, c)
	case "release":
		go p.release(c)
	case "observe":
		go p.observe(c)
	case "set_limit":
		go p.setLimit(c)
	case "shutdown":
		go func() {
			err := p.client.Close()
			reply(c, nowMs(), struct{}{}, err)
		}()
	default:
		return fmt.Errorf("unknown command: %s", c.Do)
	}
	return nil
}

func (p *probe) state(name string) lease {
	p.mu.Lock()
	named := p.leases[name]
	p.mu.Unlock()
	return stateOf(named)
}

func (p *probe) acquire(ctx context.Context, c command) {
	targets, options := p.acquireArguments(c)
	var lease *leasehold.Lease
	var err error
	switch {
	case c.Do == "acquire" && len(targets) == 1:
		lease, err = p.client.Lock(ctx, targets[0].Name, append(options, modeOptions(targets[0])...)...)
	case c.Do == "acquire":
		lease, err = p.client.LockAll(ctx, targets, options...)
	case len(targets) == 1:
		lease, err = p.client.TryLock(ctx, targets[0].Name, append(options, modeOptions(targets[0])...)...)
	default:
		lease, err = p.client.TryLockAll(ctx, targets, options...)
	}
	at := nowMs()
	p.mu.Lock()
	delete(p.pending, c.ID)
	if err == nil {
		p.leases[c.As] = namedLease{lease, targets}
	}
	p.mu.Unlock()
	switch {
	case err == nil:
		reply(c, at, stateOf(namedLease{lease, targets}), nil)
	case c.Do == "try_acquire" && errors.Is(err, leasehold.ErrHeld):
		reply(c, at, nil, nil)
	default:
		reply(c, at, nil, err)
	}
}

func (p *probe) release(c command) {
	p.mu.Lock()
	named := p.leases[c.Lease]
	p.mu.Unlock()
	err := named.lease.Release(context.Background())
	reply(c, nowMs(), struct{}{}, err)
}

func (p *probe) observe(c command) {
	for leader, err := range p.client.Elect(c.Lock).Observe(context.Background()) {
		at := nowMs()
		if err != nil {
			reply(c, at, nil, err)
			return
		}
		observation := observation{}
		if leader != nil {
			holder := holderOf(*leader)
			observation.Holder = &holder
		}
		// An observer of an election reports the leader only.
		state, err := p.client.Get(context.Background(), c.Lock)
		observation.Closure = closureOf(state.Closure)
		if usage := state.PermitUsage; usage != nil {
			observation.PermitUsage = &permitUsage{usage.Limit, usage.Used, usage.IsLimitSet}
		}
		reply(c, at, observation, err)
		return
	}
}

func (p *probe) setLimit(c command) {
	var previous int
	var err error
	if c.Limit == 0 {
		previous, err = p.client.RemoveLimit(context.Background(), c.Lock)
	} else {
		previous, err = p.client.SetLimit(context.Background(), c.Lock, c.Limit)
	}
	at := nowMs()
	limit := previousLimit{}
	if previous != 0 {
		limit.PreviousLimit = &previous
	}
	reply(c, at, limit, err)
}

// acquireArguments returns the targets and options of an acquire command.
func (p *probe) acquireArguments(c command) ([]leasehold.Target, []leasehold.Option) {
	targets := make([]leasehold.Target, len(c.Targets))
	for i, target := range c.Targets {
		targets[i] = leasehold.Target{
			Name: target.Name, Namespace: target.Namespace, Shared: target.Mode == "shared",
			Permits: target.Permits, Limit: target.Limit,
		}
	}
	options := []leasehold.Option{
		leasehold.WithReason(c.Reason),
		leasehold.WithOnQueue(func(position leasehold.QueuePosition) {
			writeLine(queuedEvent{
				"queued", nowMs(), c.ID, position.Position, position.QueueLength, holdersOf(position.Holders),
				closureOf(position.Closure),
			})
		}),
		leasehold.WithOnLost(func(l *leasehold.Lease) {
			writeLine(event{Event: "lost", AtMs: nowMs(), Lease: c.As, Reason: *reasonOf(l.LostReason())})
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
		{c.AtLeastMs, leasehold.WithAtLeast},
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

// modeOptions returns the options by which a call for one lock uses the namespace and the mode of the target.
func modeOptions(target leasehold.Target) []leasehold.Option {
	options := []leasehold.Option{leasehold.WithNamespace(target.Namespace)}
	switch {
	case target.Shared:
		options = append(options, leasehold.WithShared())
	case target.Permits != 0:
		options = append(options, leasehold.WithPermits(target.Permits, target.Limit))
	}
	return options
}

func millis(count int64) time.Duration { return time.Duration(count) * time.Millisecond }
