// The client, its options, and inspection of locks.

package leasehold

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"unicode/utf8"
)

// Client acquires locks and renews their leases. Create one client per process. All methods may be called concurrently.
type Client struct {
	runtime *clientRuntime
	owner   string
}

// ClientOption is an option of [New].
type ClientOption func(*settings)

type settings struct {
	owner              string
	credentials        credentialSource
	allowInsecureToken bool
	tls                *tls.Config
	logger             *slog.Logger
	err                error
}

// WithOwner sets the name of this process, which operators and other callers see as the holder of a lock. 1 to 256
// bytes of UTF-8; default: host name and process id.
func WithOwner(owner string) ClientOption {
	return func(s *settings) {
		s.owner = owner
		if len(owner) < 1 || len(owner) > 256 || !utf8.ValidString(owner) {
			s.err = newError(ErrInvalidOwner, "")
		}
	}
}

// WithBearerToken sends this bearer token to the brokers with every call.
func WithBearerToken(token string) ClientOption {
	return func(s *settings) { s.credentials = credentialSource{token: token} }
}

// WithBearerTokenFile reads the bearer token from a file. The file is checked every second. If the token has changed,
// the client sends the new token to the broker, so that leases can outlive the token that they were acquired with.
// White space around the token is ignored.
func WithBearerTokenFile(path string) ClientOption {
	return func(s *settings) { s.credentials = credentialSource{file: path} }
}

// WithAllowInsecureToken permits sending the bearer token unencrypted to endpoints that use neither https nor an
// address of this machine (127.0.0.0/8, ::1 and localhost). Use it only on a trusted network. Without this option,
// [New] rejects these endpoints with [ErrInsecureToken].
func WithAllowInsecureToken() ClientOption {
	return func(s *settings) { s.allowInsecureToken = true }
}

// WithTLS sets the TLS configuration for https endpoints: the trusted root certificates, and the client certificate if
// there is one. Default: the system trust store, without a client certificate.
func WithTLS(config *tls.Config) ClientOption {
	return func(s *settings) { s.tls = config.Clone() }
}

// WithLogger sets the logger of the client. Default: slog.Default().
func WithLogger(logger *slog.Logger) ClientOption {
	return func(s *settings) { s.logger = logger }
}

// New validates the settings and creates a client. No connection is opened before the first call. Call [Client.Close]
// when the client is no longer needed.
//
// The endpoints are URLs, separated by commas, as in http://a:7070,http://b:7070. The client uses one endpoint at a
// time, and fails over to the next one when a broker does not answer.
//
// It fails with [ErrNoEndpoint], [ErrInvalidEndpoint], [ErrInvalidCredential], [ErrInsecureToken] or [ErrInvalidOwner].
func New(endpoints string, options ...ClientOption) (*Client, error) {
	settings := settings{tls: &tls.Config{MinVersion: tls.VersionTLS12}}
	for _, option := range options {
		option(&settings)
	}
	if settings.err != nil {
		return nil, settings.err
	}
	credential, err := settings.credentials.authorization()
	if err != nil {
		return nil, err
	}
	parsed, err := parseEndpoints(endpoints)
	if err != nil {
		return nil, err
	}
	if credential != "" && !settings.allowInsecureToken {
		if err := rejectExposedToken(parsed); err != nil {
			return nil, err
		}
	}
	metrics, err := newMetrics()
	if err != nil {
		return nil, fmt.Errorf("leasehold: %w", err)
	}
	if settings.owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		settings.owner = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	shared := &brokerEndpoints{list: parsed, tls: settings.tls, credentials: settings.credentials}
	return &Client{&clientRuntime{endpoints: shared, logger: settings.logger, metrics: metrics}, settings.owner}, nil
}

// Connect waits until the client is connected to a broker. Without it, the first call connects. It fails with
// [ErrUnreachable] or [ErrCredentialRefused] once every endpoint was tried, or with the error of ctx.
func (c *Client) Connect(ctx context.Context) error {
	_, err := c.runtime.connect(ctx)
	return err
}

// LockState is a snapshot of a lock.
type LockState struct {
	// Holders of the lock, at most 100.
	Holders []Holder
	// QueueLength is the number of waiters.
	QueueLength int
	// LastFencingToken is the fencing token of the latest grant.
	LastFencingToken int64
	// Closure is the closure of the lock; nil if the lock is not closed.
	Closure *Closure
	// PermitUsage is the limit of a semaphore and its permits in use; nil for other locks, and for a semaphore without
	// holders, waiters and a set limit.
	PermitUsage *PermitUsage
}

// PermitUsage is the limit of a semaphore, and the permits in use.
type PermitUsage struct {
	// Limit is the limit in use.
	Limit int
	// Used is the number of permits of all holders. Used exceeds Limit if the limit was lowered while permits were held.
	Used int
	// IsLimitSet is true if the limit was set with [Client.SetLimit], and false if it is the limit of the present callers.
	IsLimitSet bool
}

// Free returns the number of permits that are not in use; 0 if Used exceeds Limit.
func (u PermitUsage) Free() int { return max(0, u.Limit-u.Used) }

// Get returns the current state of a lock. The state is empty if the lock has no holder and no waiter, is not closed,
// and has no set limit. Of the options only [WithNamespace] has an effect.
func (c *Client) Get(ctx context.Context, name string, options ...Option) (LockState, error) {
	opts, err := newAcquireOptions(c.owner, []Target{{Name: name}}, options)
	if err != nil {
		return LockState{}, err
	}
	state, err := c.runtime.getLock(ctx, opts.targets[0].lock())
	if err != nil {
		return LockState{}, err
	}
	return LockState{
		Holders:          holdersOf(state.GetHolders()),
		QueueLength:      int(state.GetQueueLength()),
		LastFencingToken: state.GetLastFencingToken(),
		Closure:          closureOf(state.GetClosure()),
		PermitUsage:      permitUsageOf(state.GetPermitUsage()),
	}, nil
}

// SetLimit sets the limit of a semaphore, 1 to 1,000. It returns the limit that was in use; 0 if there was none. Of the
// options only [WithNamespace] has an effect.
//
// Callers follow a set limit, whatever limit they send, until it is removed, also while the lock is idle. A lower limit
// revokes no lease: new grants wait until enough permits are released, and waiters that request more permits than the
// limit fail with [ErrLimitMismatch].
//
// Where the broker has access rules, the caller needs the verb set_limit or admin, or SetLimit fails with
// [ErrPermissionDenied]. It fails with [ErrLimitMismatch] if the lock is held or waited for as an exclusive or shared
// lock, with [ErrInvalid] if the limit or the name is not valid, with [ErrUnavailable] if no broker responds in time,
// and with the error of ctx if ctx ends first. After these last two errors the limit may have been set nevertheless;
// the call is safe to repeat.
func (c *Client) SetLimit(ctx context.Context, name string, limit int, options ...Option) (previous int, err error) {
	if limit == 0 {
		return 0, newError(ErrInvalid, "limit: must be 1 to 1000; RemoveLimit removes a limit")
	}
	return c.setLimit(ctx, name, limit, options)
}

// RemoveLimit removes the limit that was set with [Client.SetLimit], and returns it; 0 if none was set. The lock keeps
// the limit in use until it is idle. The options and the errors are those of SetLimit.
func (c *Client) RemoveLimit(ctx context.Context, name string, options ...Option) (removed int, err error) {
	return c.setLimit(ctx, name, 0, options)
}

func (c *Client) setLimit(ctx context.Context, name string, limit int, options []Option) (previous int, err error) {
	opts, err := newAcquireOptions(c.owner, []Target{{Name: name}}, options)
	if err != nil {
		return 0, err
	}
	return c.runtime.setLimit(ctx, opts.targets[0].lock(), limit)
}

// Owner returns the owner name of this client; see [WithOwner].
func (c *Client) Owner() string { return c.owner }

// Close cancels all pending acquires, releases all leases and closes the client. Later calls fail with [ErrClosed], and
// remaining leases are lost with [LostClosed]. Close takes at most 2 s. It fails with [ErrUnconfirmed] if a release was
// not confirmed by then; the lease then expires.
func (c *Client) Close() error {
	if !c.runtime.close() {
		return newError(ErrUnconfirmed, "")
	}
	return nil
}

// String returns a description without secrets.
func (c *Client) String() string { return "client " + c.owner }

// GoString returns the same text as String, without secrets.
func (c *Client) GoString() string { return c.String() }
