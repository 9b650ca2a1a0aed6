// Options of an acquire, and their validation.

package leasehold

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

// Forever is a wait without a time limit. After each hour the call leaves the queue and is enqueued again at its end.
const Forever time.Duration = math.MaxInt64

const (
	// waitDefault is the time for which Lock waits in the queue without [WithWait].
	waitDefault = 30 * time.Second
	// waitMax is the longest wait that a broker accepts. A longer wait consists of several acquires.
	waitMax = time.Hour
)

// Option is an option of an acquire, as of [Client.Lock].
type Option func(*acquireOptions)

// WithTTL sets the time for which the lock is valid after each heartbeat. If this process dies, the lock stays held for
// about this time. 1 s to 60 s unless the broker is configured otherwise; default 10 s.
func WithTTL(ttl time.Duration) Option {
	return func(o *acquireOptions) { o.params.ttl = o.validDuration(ttl) }
}

// WithWait sets the time for which Lock and LockAll wait in the queue; default 30 s. 0 means not to wait, and [Forever]
// to wait until the context ends. The Try calls never wait.
func WithWait(wait time.Duration) Option {
	return func(o *acquireOptions) { o.wait = *o.validDuration(wait) }
}

// WithReason sets the reason of the acquire, which other callers and operators see while the lock is held. At most 512
// bytes.
func WithReason(reason string) Option {
	return func(o *acquireOptions) { o.params.owner.Reason = o.validText(reason) }
}

// WithLabel adds a label, which appears in lists of locks and in logs. At most 16 labels.
func WithLabel(key, value string) Option {
	return func(o *acquireOptions) {
		if o.params.owner.Labels == nil {
			o.params.owner.Labels = map[string]string{}
		}
		o.params.owner.Labels[o.validText(key)] = o.validText(value)
	}
}

// WithNamespace sets the namespace of all locks of the call. It replaces the default namespace "default" and the
// namespace of each [Target].
func WithNamespace(namespace string) Option {
	return func(o *acquireOptions) { o.forEachTarget(func(t *Target) { t.Namespace = namespace }) }
}

// WithShared acquires the lock in shared mode, together with other shared holders.
func WithShared() Option {
	return func(o *acquireOptions) { o.forEachTarget(func(t *Target) { t.Shared = true }) }
}

// WithPermits acquires this number of permits of a semaphore. The limit is the total number of permits of the lock; 0
// uses the limit in use. A limit that is set with [Client.SetLimit] overrides it.
func WithPermits(permits, limit int) Option {
	return func(o *acquireOptions) { o.forEachTarget(func(t *Target) { t.Permits, t.Limit = permits, limit }) }
}

// WithMaxHold sets the longest time for which the lock may be held, however often it is renewed. After that time the
// lock is lost with [LostMaxHold].
func WithMaxHold(longest time.Duration) Option {
	return func(o *acquireOptions) { o.params.maxHold = o.validDuration(longest) }
}

// WithLockDelay sets the time for which the lock grants nothing after this lease has expired or was revoked, at most 60
// s. It protects resources that cannot check fencing tokens.
func WithLockDelay(delay time.Duration) Option {
	return func(o *acquireOptions) { o.params.lockDelay = o.validDuration(delay) }
}

// WithDisconnectGrace releases the lock this time after the client's stream has broken, even if the lease is still
// valid in this process. The lock is released faster after a crash, but a holder behind a broken network may overlap
// with the next holder.
func WithDisconnectGrace(grace time.Duration) Option {
	return func(o *acquireOptions) { o.params.disconnectGrace = o.validDuration(grace) }
}

// WithAtLeast keeps the lock closed until this time after the grant, however the lease ends: for a job that runs once a
// period. It must not be shorter than the validity of the lease; the broker allows at most a day by default. A job that
// died is not run again within the period, unless an operator opens the lock.
func WithAtLeast(period time.Duration) Option {
	return func(o *acquireOptions) { o.params.atLeast = o.validDuration(period) }
}

// WithUnder adds the lock to this lease, or enters a lock again that the lease already holds. The lease and the added
// lease are lost together. Each of them releases only what its own call acquired.
func WithUnder(lease *Lease) Option {
	return func(o *acquireOptions) { o.under = lease.handle }
}

// WithOnQueue calls the hook with the queue position: once when the call is queued, and when the position changes, at
// most once a second. The hook runs in the goroutine that waits.
func WithOnQueue(hook func(QueuePosition)) Option {
	return func(o *acquireOptions) { o.onQueue = hook }
}

// WithOnLost calls the hook once, in its own goroutine, when the lease is lost. A release by this process does not call
// the hook.
func WithOnLost(hook func(*Lease)) Option {
	return func(o *acquireOptions) { o.onLost = hook }
}

// WithAttempts lets TryLock and TryLockAll try up to this number of times. The interval between two attempts varies
// randomly by a quarter in both directions. Waiting in the queue, as [Client.Lock] does, is fair and faster.
func WithAttempts(attempts int, every time.Duration) Option {
	return func(o *acquireOptions) { o.attempts, o.interval = max(1, attempts), *o.validDuration(every) }
}

// acquireOptions is the validated parameters of an acquire of one or several locks.
type acquireOptions struct {
	targets  []Target
	params   acquireParams
	wait     time.Duration
	attempts int
	interval time.Duration
	under    *leaseHandle
	onQueue  func(QueuePosition)
	onLost   func(*Lease)
	// err is the error of an invalid option.
	err *Error
}

func newAcquireOptions(owner string, targets []Target, options []Option) (*acquireOptions, error) {
	opts := &acquireOptions{
		targets:  append([]Target(nil), targets...),
		params:   acquireParams{owner: &pb.Owner{Id: owner}},
		wait:     waitDefault,
		attempts: 1,
	}
	for _, option := range options {
		option(opts)
	}
	if len(opts.targets) == 0 {
		return nil, newError(ErrInvalid, "no target was given; name at least one lock")
	}
	for _, target := range opts.targets {
		if err := target.validate(); err != nil {
			return nil, err
		}
		opts.params.targets = append(opts.params.targets, target.proto())
	}
	if opts.err != nil {
		return nil, opts.err
	}
	return opts, nil
}

func (o *acquireOptions) forEachTarget(change func(*Target)) {
	for i := range o.targets {
		change(&o.targets[i])
	}
}

func (o *acquireOptions) validDuration(duration time.Duration) *time.Duration {
	if duration < 0 {
		o.err = newError(ErrInvalid, fmt.Sprintf("the duration %s is negative", duration))
	}
	return &duration
}

// validText returns the text unchanged and records an error if it is not valid UTF-8. Such a text must be rejected
// before it is sent, because a message that cannot be encoded would close the stream of all leases.
func (o *acquireOptions) validText(text string) string {
	if !utf8.ValidString(text) {
		o.err = newError(ErrInvalid, fmt.Sprintf("the text %q is not valid UTF-8", text))
	}
	return text
}

func (o *acquireOptions) names() []string {
	names := make([]string, len(o.targets))
	for i, target := range o.targets {
		names[i] = target.lock().String()
	}
	return names
}

func (o *acquireOptions) String() string { return strings.Join(o.names(), ", ") }
