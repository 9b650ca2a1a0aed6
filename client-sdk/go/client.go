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
}

// Get returns the current holders and the queue length of a lock. The state is empty if the lock has no holder and no
// waiter. Of the options only [WithNamespace] has an effect.
func (c *Client) Get(ctx context.Context, name string, options ...Option) (LockState, error) {
	opts, err := newAcquireOptions(c.owner, []Target{{Name: name}}, options)
	if err != nil {
		return LockState{}, err
	}
	state, err := c.runtime.getLock(ctx, opts.targets[0].lock())
	if err != nil {
		return LockState{}, err
	}
	return LockState{holdersOf(state.GetHolders()), int(state.GetQueueLength()), state.GetLastFencingToken()}, nil
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
