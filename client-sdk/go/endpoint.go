// Where the brokers are, and how to reach and convince them.

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
	// openLimit is for establishing a connection and opening a stream on it.
	openLimit = 2 * time.Second
	// pingEvery is the least that gRPC allows. It finds a dead connection of a client that has nothing to keep; one
	// that has does not wait so long.
	pingEvery = 10 * time.Second
	pingLimit = 2 * time.Second
)

var ports = map[string]string{"http": "80", "https": "443"}

// endpoint is one broker, or a name behind which there are several.
type endpoint struct {
	name    string
	address string
	isTLS   bool
}

// brokers is what all streams of a client share.
type brokers struct {
	endpoints []endpoint
	tls       *tls.Config
	// source is of what is shown with every call and every stream.
	source source
}

// endpointsOf reads URLs that are separated by commas.
func endpointsOf(urls string) ([]endpoint, error) {
	var endpoints []endpoint
	for one := range strings.SplitSeq(urls, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		read, err := endpointOf(one)
		if err != nil {
			return nil, err
		}
		endpoints = append(endpoints, read)
	}
	if len(endpoints) == 0 {
		return nil, failed(ErrNoEndpoint, "")
	}
	return endpoints, nil
}

func endpointOf(text string) (endpoint, error) {
	invalid := func(why string) (endpoint, error) {
		message := fmt.Sprintf("endpoint %q: %s; expected a URL as in http://127.0.0.1:7070", text, why)
		return endpoint{}, failed(ErrInvalidEndpoint, message)
	}
	read, err := url.Parse(text)
	if err != nil {
		return invalid("is no URL")
	}
	port, ok := ports[read.Scheme]
	if !ok {
		return invalid("is no http or https URL")
	}
	if read.Hostname() == "" {
		return invalid("has no host")
	}
	if read.Port() != "" {
		port = read.Port()
	}
	return endpoint{text, net.JoinHostPort(read.Hostname(), port), read.Scheme == "https"}, nil
}

// refuseExposedToken fails if a bearer token would cross a network unencrypted.
func refuseExposedToken(endpoints []endpoint) error {
	for _, one := range endpoints {
		host, _, err := net.SplitHostPort(one.address)
		if err == nil && (one.isTLS || isLoopback(host)) {
			continue
		}
		message := fmt.Sprintf("endpoint %q: %s; use https, or WithAllowInsecureToken where the network itself is trusted",
			one.name, ErrInsecureToken)
		return failed(ErrInsecureToken, message)
	}
	return nil
}

// isLoopback is true of this machine: an address in 127.0.0.0/8, ::1, or localhost.
func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || (err == nil && address.IsLoopback() && !address.Is4In6())
}

// connect makes a connection of its own, which begins with its first call: a new stream must not find the broken
// connection again.
func (b *brokers) connect(to endpoint) (*grpc.ClientConn, error) {
	trusted := insecure.NewCredentials()
	if to.isTLS {
		trusted = credentials.NewTLS(b.tls)
	}
	return grpc.NewClient("passthrough:///"+to.address,
		grpc.WithTransportCredentials(trusted),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingLimit}),
		grpc.WithUserAgent("leasehold-go/"+Version),
		// What is repeated is decided here.
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	)
}
