// A client: one for each process.

package leasehold

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"unicode/utf8"
)

// Client takes locks and keeps their leases alive. It may be used by any number of goroutines.
type Client struct {
	core  *core
	owner string
}

// ClientOption is one thing that a client is told of the brokers, or of itself.
type ClientOption func(*settings)

type settings struct {
	owner              string
	source             source
	allowInsecureToken bool
	tls                *tls.Config
	logger             *slog.Logger
	why                error
}

// WithOwner sets the name of this process, shown to people who find a lock held. 1 to 256 bytes; default: host name
// and process id.
func WithOwner(owner string) ClientOption {
	return func(s *settings) {
		s.owner = owner
		if len(owner) < 1 || len(owner) > 256 || !utf8.ValidString(owner) {
			s.why = failed(ErrInvalidOwner, "")
		}
	}
}

// WithBearerToken shows this token to the brokers with every call.
func WithBearerToken(token string) ClientOption {
	return func(s *settings) { s.source = source{token: token} }
}

// WithBearerTokenFile shows the token in this file instead. It is looked at every second: when it has another token,
// that is shown to the brokers, so that locks outlive the token that they were taken with. White space around the
// token does not count.
func WithBearerTokenFile(path string) ClientOption {
	return func(s *settings) { s.source = source{file: path} }
}

// WithAllowInsecureToken lets the bearer token go unencrypted to endpoints that are not https and not of this machine
// (127.0.0.0/8, ::1 and localhost): only where the network itself is trusted. Without it such an endpoint is refused
// with [ErrInsecureToken].
func WithAllowInsecureToken() ClientOption {
	return func(s *settings) { s.allowInsecureToken = true }
}

// WithTLS says how https endpoints are trusted, and has the client's own certificate if there is one. Default: the
// root certificates of the machine.
func WithTLS(config *tls.Config) ClientOption {
	return func(s *settings) { s.tls = config.Clone() }
}

// WithLogger logs there instead of to slog.Default().
func WithLogger(logger *slog.Logger) ClientOption {
	return func(s *settings) { s.logger = logger }
}

// New checks the settings. Nothing is begun before the first call. Close the client in the end.
//
// The endpoints are URLs, separated by commas, as in http://a:7070,http://b:7070. One is used at a time; the others
// are for when it does not answer any more.
//
// It fails with [ErrNoEndpoint], [ErrInvalidEndpoint], [ErrInvalidCredential], [ErrInsecureToken] or [ErrInvalidOwner].
func New(endpoints string, options ...ClientOption) (*Client, error) {
	s := settings{tls: &tls.Config{MinVersion: tls.VersionTLS12}}
	for _, option := range options {
		option(&s)
	}
	if s.why != nil {
		return nil, s.why
	}
	credential, err := s.source.now()
	if err != nil {
		return nil, err
	}
	read, err := endpointsOf(endpoints)
	if err != nil {
		return nil, err
	}
	if credential != "" && !s.allowInsecureToken {
		if err := refuseExposedToken(read); err != nil {
			return nil, err
		}
	}
	metrics, err := newMetrics()
	if err != nil {
		return nil, fmt.Errorf("leasehold: %w", err)
	}
	if s.owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		s.owner = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	brokers := &brokers{endpoints: read, tls: s.tls, source: s.source}
	return &Client{&core{brokers: brokers, logger: s.logger, metrics: metrics}, s.owner}, nil
}

// Connect makes sure that a broker answers now, instead of at the first call. It fails with [ErrUnreachable] or
// [ErrCredentialRefused] once every endpoint was tried, or with the error of ctx.
func (c *Client) Connect(ctx context.Context) error {
	_, err := c.core.connect(ctx)
	return err
}

// LockState is what a lock was doing when the broker looked.
type LockState struct {
	// Holders are at most 100.
	Holders []Holder
	// QueueLength is how many wait.
	QueueLength int
	// LastFencingToken is the newest token given.
	LastFencingToken int64
}

// Get looks who holds a lock and how many wait, at this moment: an empty state if nobody does either. Of the options
// only [WithNamespace] counts.
func (c *Client) Get(ctx context.Context, name string, options ...Option) (LockState, error) {
	p, err := newPlan(c.owner, []Target{{Name: name}}, options)
	if err != nil {
		return LockState{}, err
	}
	found, err := c.core.look(ctx, p.targets[0].lock())
	if err != nil {
		return LockState{}, err
	}
	return LockState{holdersOf(found.GetHolders()), int(found.GetQueueLength()), found.GetLastFencingToken()}, nil
}

// Owner is the name of this process, as people find it.
func (c *Client) Owner() string { return c.owner }

// Close gives up every wait, releases every lease, and ends the client: its calls fail with [ErrClosed] from now on,
// and leases that are left have lost their locks. It takes at most 2 s. [ErrUnconfirmed]: something could not be
// released by then, and runs out.
func (c *Client) Close() error {
	if !c.core.close() {
		return failed(ErrUnconfirmed, "")
	}
	return nil
}

// String shows nothing that is secret.
func (c *Client) String() string { return "client " + c.owner }

// GoString is String.
func (c *Client) GoString() string { return c.String() }
