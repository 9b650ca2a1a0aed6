// How a lock is taken: what a caller may say besides its name.

package leasehold

import (
	"math"
	"strings"
	"time"
	"unicode/utf8"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

// Forever is a wait without an end. After each hour the place in line begins again at its end.
const Forever time.Duration = math.MaxInt64

const (
	// waitDefault is how long Lock waits in line unless told otherwise.
	waitDefault = 30 * time.Second
	// waitMax is the longest wait that a broker allows; a longer one is several of these.
	waitMax = time.Hour
)

// Option is one thing that a caller says of how a lock is taken.
type Option func(*plan)

// WithTTL sets how long the lock can be trusted after each heartbeat, and so how long others wait when this process
// dies: 1 s to 60 s unless the broker says otherwise; default 10 s.
func WithTTL(ttl time.Duration) Option {
	return func(p *plan) { p.call.ttl = p.span(ttl) }
}

// WithWait sets how long Lock and LockAll wait in line; default 30 s, 0: not at all, [Forever]: until the context
// ends. The Try calls do not wait.
func WithWait(wait time.Duration) Option {
	return func(p *plan) { p.wait = *p.span(wait) }
}

// WithReason says why the lock is taken, for whoever finds it held. At most 512 bytes.
func WithReason(reason string) Option {
	return func(p *plan) { p.call.owner.Reason = p.text(reason) }
}

// WithLabel adds a label for lists and logs; at most 16.
func WithLabel(key, value string) Option {
	return func(p *plan) {
		if p.call.owner.Labels == nil {
			p.call.owner.Labels = map[string]string{}
		}
		p.call.owner.Labels[p.text(key)] = p.text(value)
	}
}

// WithNamespace takes the locks of the call in this namespace instead of "default", or of what their Target says.
func WithNamespace(namespace string) Option {
	return func(p *plan) { p.each(func(t *Target) { t.Namespace = namespace }) }
}

// WithShared takes the lock together with others that share it.
func WithShared() Option {
	return func(p *plan) { p.each(func(t *Target) { t.Shared = true }) }
}

// WithPermits takes so many permits of the limit that the lock has in all; limit 0 is the one in use.
func WithPermits(permits, limit int) Option {
	return func(p *plan) { p.each(func(t *Target) { t.Permits, t.Limit = permits, limit }) }
}

// WithMaxHold sets the longest time that the lock may be held in all; then it is lost with [LostMaxHold].
func WithMaxHold(longest time.Duration) Option {
	return func(p *plan) { p.call.maxHold = p.span(longest) }
}

// WithLockDelay keeps the lock closed for so long after an expiry or revocation, at most 60 s; for resources that
// cannot check fencing tokens.
func WithLockDelay(delay time.Duration) Option {
	return func(p *plan) { p.call.lockDelay = p.span(delay) }
}

// WithDisconnectGrace frees the lock so long after this client's stream broke, even if this process may still trust
// it: faster after a crash, but a holder behind a broken network may overlap with the next one.
func WithDisconnectGrace(grace time.Duration) Option {
	return func(p *plan) { p.call.disconnectGrace = p.span(grace) }
}

// WithUnder adds the lock to this lease, or enters a lock once more that the lease has. Both leases are lost
// together; each gives back what it took itself.
func WithUnder(lease *Lease) Option {
	return func(p *plan) { p.under = lease.grip }
}

// WithOnQueue calls the hook with the place in line, at first and when it changes, at most once a second, in the
// goroutine that waits.
func WithOnQueue(hook func(Place)) Option {
	return func(p *plan) { p.onQueue = hook }
}

// WithOnLost calls the hook with the lease when it is lost, once, in a goroutine of its own; not when it was
// released here.
func WithOnLost(hook func(*Lease)) Option {
	return func(p *plan) { p.onLost = hook }
}

// WithAttempts has TryLock and TryLockAll try up to so many times, so often give or take a quarter. Waiting in line,
// as Lock does, is fair and faster.
func WithAttempts(attempts int, every time.Duration) Option {
	return func(p *plan) { p.attempts, p.every = max(1, attempts), *p.span(every) }
}

// plan is one lock, or several, about to be taken.
type plan struct {
	targets  []Target
	call     call
	wait     time.Duration
	attempts int
	every    time.Duration
	under    *grip
	onQueue  func(Place)
	onLost   func(*Lease)
	// why is what was wrong with an option.
	why *Error
}

func newPlan(owner string, targets []Target, options []Option) (*plan, error) {
	p := &plan{
		targets:  append([]Target(nil), targets...),
		call:     call{owner: &pb.Owner{Id: owner}},
		wait:     waitDefault,
		attempts: 1,
	}
	for _, option := range options {
		option(p)
	}
	if len(p.targets) == 0 {
		return nil, failed(ErrInvalid, "no lock is named")
	}
	for _, target := range p.targets {
		if why := target.check(); why != nil {
			return nil, why
		}
		p.call.targets = append(p.call.targets, target.proto())
	}
	if p.why != nil {
		return nil, p.why
	}
	return p, nil
}

func (p *plan) each(change func(*Target)) {
	for i := range p.targets {
		change(&p.targets[i])
	}
}

func (p *plan) span(length time.Duration) *time.Duration {
	if length < 0 {
		p.why = failed(ErrInvalid, "a span of time is negative")
	}
	return &length
}

// text is checked here: one message that cannot be sent would end the stream of all leases.
func (p *plan) text(text string) string {
	if !utf8.ValidString(text) {
		p.why = failed(ErrInvalid, "a text is no UTF-8")
	}
	return text
}

func (p *plan) names() []string {
	names := make([]string, len(p.targets))
	for i, target := range p.targets {
		names[i] = target.lock().String()
	}
	return names
}

func (p *plan) String() string { return strings.Join(p.names(), ", ") }
