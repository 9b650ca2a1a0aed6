// Endpoints of brokers, and connections to them.

package leasehold

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	// openTimeout is the longest time to connect and to open a stream.
	openTimeout = 2 * time.Second
	// pingInterval is the shortest keepalive interval that gRPC allows. It detects dead connections of a client without
	// leases and pending acquires; with these, livenessTimeout detects them earlier.
	pingInterval = 10 * time.Second
	pingTimeout  = 2 * time.Second
)

var defaultPorts = map[string]string{"http": "80", "https": "443"}

// endpoint is the address of one broker, or a name that several brokers share.
type endpoint struct {
	name    string
	address string
	isTLS   bool
}

// brokerEndpoints is the connection settings that all streams of a client share.
type brokerEndpoints struct {
	list []endpoint
	tls  *tls.Config
	// credentials is the origin of the credential of every call and stream.
	credentials credentialSource
}

// parseEndpoints parses URLs that are separated by commas.
func parseEndpoints(urls string) ([]endpoint, error) {
	var endpoints []endpoint
	for text := range strings.SplitSeq(urls, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		parsed, err := parseEndpoint(text)
		if err != nil {
			return nil, err
		}
		endpoints = append(endpoints, parsed)
	}
	if len(endpoints) == 0 {
		return nil, newError(ErrNoEndpoint, "")
	}
	return endpoints, nil
}

func parseEndpoint(text string) (endpoint, error) {
	invalid := func(reason string) (endpoint, error) {
		message := fmt.Sprintf("endpoint %q: %s; expected a URL as in http://127.0.0.1:7070", text, reason)
		return endpoint{}, newError(ErrInvalidEndpoint, message)
	}
	parsed, err := url.Parse(text)
	if err != nil {
		return invalid("is not a URL")
	}
	port, ok := defaultPorts[parsed.Scheme]
	if !ok {
		return invalid("is not an http or https URL")
	}
	if parsed.Hostname() == "" {
		return invalid("has no host")
	}
	if parsed.Port() != "" {
		port = parsed.Port()
	}
	return endpoint{text, net.JoinHostPort(parsed.Hostname(), port), parsed.Scheme == "https"}, nil
}

// rejectExposedToken fails if a bearer token would be sent over a network unencrypted.
func rejectExposedToken(endpoints []endpoint) error {
	for _, endpoint := range endpoints {
		host, _, err := net.SplitHostPort(endpoint.address)
		if err == nil && (endpoint.isTLS || isLoopback(host)) {
			continue
		}
		message := fmt.Sprintf("endpoint %q: %s; use https, or WithAllowInsecureToken on a trusted network",
			endpoint.name, ErrInsecureToken)
		return newError(ErrInsecureToken, message)
	}
	return nil
}

// isLoopback returns true for a host of this machine: an address in 127.0.0.0/8, ::1, or localhost.
func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || (err == nil && address.IsLoopback() && !address.Is4In6())
}

// connect creates a new connection, which is opened by its first call. Each stream has a separate connection, so that a
// new stream does not reuse a broken one.
func (e *brokerEndpoints) connect(endpoint endpoint) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if endpoint.isTLS {
		transport = credentials.NewTLS(e.tls)
	}
	return grpc.NewClient("passthrough:///"+endpoint.address,
		grpc.WithTransportCredentials(transport),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingInterval, Timeout: pingTimeout}),
		grpc.WithUserAgent("leasehold-go/"+Version),
		// The client itself decides which calls are retried.
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	)
}
