// Where clients connect, and what they show: TLS, certificates, the bearer token and the trace context.

package leasehold_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"leasehold.dev/sdk"
	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

// listener hears what clients show, and answers nothing.
type listener struct {
	pb.UnimplementedLockServiceServer
	heard chan heard
}

type heard struct {
	header metadata.MD
	said   *pb.HoldRequest
}

func (l *listener) Hold(stream pb.LockService_HoldServer) error {
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	header, _ := metadata.FromIncomingContext(stream.Context())
	for {
		said, err := stream.Recv()
		if err != nil {
			return err
		}
		l.heard <- heard{header, said}
	}
}

func startListener(t *testing.T) (string, *listener) {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	server, l := grpc.NewServer(), &listener{heard: make(chan heard, 100)}
	pb.RegisterLockServiceServer(server, l)
	go func() { _ = server.Serve(socket) }()
	t.Cleanup(server.Stop)
	return "http://" + socket.Addr().String(), l
}

func TestTheCredentialAndTheTraceContextAreShown(t *testing.T) {
	t.Parallel()
	url, l := startListener(t)
	client := clientOf(t, url, leasehold.WithBearerToken(canary), leasehold.WithOwner("me"))
	parent := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	})
	ctx, cancel := context.WithCancel(trace.ContextWithSpanContext(t.Context(), parent))
	defer cancel()
	asks(ctx, client, "a")
	first := <-l.heard
	is(t, first.header.Get("authorization")[0] == "Bearer "+canary, "not shown")
	acquire := first.said.GetAcquire()
	traceparent := acquire.GetTraceparent()
	is(t, strings.HasPrefix(traceparent, "00-"+parent.TraceID().String()), "%q", traceparent)
	is(t, len(acquire.GetRequest().GetRequestId()) == 36 && acquire.GetAttachNumber() == 1, "no request id")
	is(t, acquire.GetRequest().GetOwner().GetId() == "me", "%v", acquire.GetRequest().GetOwner())
}

func TestAnotherTokenOfTheFileIsShownToTheBroker(t *testing.T) {
	t.Parallel()
	url, l := startListener(t)
	file := filepath.Join(t.TempDir(), "token")
	ok(t, os.WriteFile(file, []byte(canary+"\n"), 0o600))
	client := clientOf(t, url, leasehold.WithBearerTokenFile(file))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asks(ctx, client, "a")
	first := <-l.heard
	is(t, first.header.Get("authorization")[0] == "Bearer "+canary, "not shown")
	ok(t, os.WriteFile(file, []byte(canary+"-2\n"), 0o600))
	for one := range l.heard {
		if refresh := one.said.GetRefreshCredential(); refresh != nil {
			is(t, refresh.GetAuthorization() == "Bearer "+canary+"-2", "another one is shown")
			return
		}
	}
}

func TestACredentialThatNobodyAcceptsIsToldAtOnce(t *testing.T) {
	t.Parallel()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	refuses := func(any, grpc.ServerStream) error { return status.Error(codes.Unauthenticated, "unknown") }
	server := grpc.NewServer(grpc.UnknownServiceHandler(refuses))
	go func() { _ = server.Serve(socket) }()
	t.Cleanup(server.Stop)
	client := clientOf(t, "http://"+socket.Addr().String(), leasehold.WithBearerToken(canary))
	fails(t, client.Connect(t.Context()), leasehold.ErrCredentialRefused)
	_, err = client.Lock(t.Context(), "a", leasehold.WithWait(time.Minute))
	fails(t, err, leasehold.ErrUnauthenticated)
	is(t, !strings.Contains(err.Error(), canary), "the credential is shown")
}

func TestEveryAcquireHasARequestOfItsOwnAndRepeatsIt(t *testing.T) {
	t.Parallel()
	url, l := startListener(t)
	proxy := startProxyTo(t, strings.TrimPrefix(url, "http://"))
	client := clientOf(t, proxy.URL())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next := func() *pb.HoldAcquire {
		for one := range l.heard {
			if acquire := one.said.GetAcquire(); acquire != nil {
				return acquire
			}
		}
		return nil
	}
	asks(ctx, client, "a")
	first := next()
	proxy.Cut()
	again := next()
	is(t, again.GetRequest().GetRequestId() == first.GetRequest().GetRequestId(), "a repeat is another call")
	is(t, again.GetAttachNumber() == first.GetAttachNumber()+1, "%d", again.GetAttachNumber())
	asks(ctx, client, "a")
	is(t, next().GetRequest().GetRequestId() != first.GetRequest().GetRequestId(), "another call is a repeat")
}

func TestSettingsThatCannotBeAreTold(t *testing.T) {
	t.Parallel()
	const good = "http://127.0.0.1:1"
	for _, one := range []struct {
		endpoints string
		option    leasehold.ClientOption
		why       error
	}{
		{" , ", leasehold.WithOwner("me"), leasehold.ErrNoEndpoint},
		{"127.0.0.1:7070", leasehold.WithOwner("me"), leasehold.ErrInvalidEndpoint},
		{"ftp://a:7070", leasehold.WithOwner("me"), leasehold.ErrInvalidEndpoint},
		{"http://", leasehold.WithOwner("me"), leasehold.ErrInvalidEndpoint},
		{good, leasehold.WithOwner(""), leasehold.ErrInvalidOwner},
		{good, leasehold.WithOwner(strings.Repeat("x", 257)), leasehold.ErrInvalidOwner},
		{good, leasehold.WithBearerToken("a\nb"), leasehold.ErrInvalidCredential},
		{good, leasehold.WithBearerToken("t\u00fcr"), leasehold.ErrInvalidCredential},
		{good, leasehold.WithBearerTokenFile("/nowhere"), leasehold.ErrInvalidCredential},
	} {
		_, err := leasehold.New(one.endpoints, one.option)
		fails(t, err, one.why)
		named := one.why != leasehold.ErrInvalidEndpoint || strings.Contains(err.Error(), one.endpoints)
		is(t, named, "%v", err)
	}
	client, err := leasehold.New("https://[::1],http://a")
	ok(t, err)
	is(t, strings.Contains(client.Owner(), ":"), "%s", client.Owner())
}

func TestATokenGoesUnencryptedToOtherMachinesOnlyIfThatIsAllowed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	ok(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	tokens := []leasehold.ClientOption{leasehold.WithBearerToken("secret"), leasehold.WithBearerTokenFile(file)}
	for _, token := range tokens {
		for _, url := range []string{
			"http://127.0.0.1:1", "http://127.9.8.7", "http://[::1]:1", "http://localhost", "http://LocalHost:1",
			"https://10.1.2.3", "https://locks.example.com",
		} {
			_, err := leasehold.New(url, token)
			ok(t, err)
		}
		for _, url := range []string{
			"http://10.1.2.3:1", "http://0.0.0.0", "http://[2001:db8::1]:1", "http://locks.example.com",
			"http://localhost.example.com", "http://127.0.0.1.example.com",
		} {
			_, err := leasehold.New("http://127.0.0.1:1,"+url, token)
			fails(t, err, leasehold.ErrInsecureToken)
			is(t, strings.Contains(err.Error(), url), "%v", err)
			is(t, !strings.Contains(err.Error(), "secret"), "%v", err)
			_, err = leasehold.New(url, token, leasehold.WithAllowInsecureToken())
			ok(t, err)
			_, err = leasehold.New(url)
			ok(t, err)
		}
	}
}

func TestABrokerIsBelievedIfItsAuthorityIsTrusted(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority(t), newAuthority(t)
	server, own := ours.issue(t, x509.ExtKeyUsageServerAuth), ours.issue(t, x509.ExtKeyUsageClientAuth)
	url := startRelay(t, sharedBroker(t).Addr, &tls.Config{
		Certificates: []tls.Certificate{server}, ClientCAs: ours.pool(), ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{"h2"},
	})
	connect := func(config *tls.Config) (*leasehold.Client, error) {
		client := clientOf(t, url, leasehold.WithTLS(config))
		return client, client.Connect(t.Context())
	}
	_, err := connect(&tls.Config{RootCAs: others.pool(), Certificates: []tls.Certificate{own}})
	fails(t, err, leasehold.ErrUnreachable)
	_, err = connect(&tls.Config{RootCAs: ours.pool()})
	fails(t, err, leasehold.ErrUnreachable)
	is(t, strings.Contains(err.Error(), "client certificate"), "%v", err)
	client, err := connect(&tls.Config{RootCAs: ours.pool(), Certificates: []tls.Certificate{own}})
	ok(t, err)
	takes(t, client, lockName(t))
}

// startRelay speaks TLS before a broker that does not.
func startRelay(t *testing.T, broker string, config *tls.Config) string {
	t.Helper()
	socket, err := tls.Listen("tcp", "127.0.0.1:0", config)
	ok(t, err)
	t.Cleanup(func() { socket.Close() })
	go func() {
		for {
			near, err := socket.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			go relay(near, broker)
		}
	}()
	return "https://" + socket.Addr().String()
}

func relay(near net.Conn, broker string) {
	defer near.Close()
	far, err := net.Dial("tcp", broker)
	if err != nil {
		return
	}
	defer far.Close()
	go func() {
		// The other direction tells of the end.
		_, _ = io.Copy(far, near)
		far.Close()
	}()
	_, _ = io.Copy(near, far)
}

// authority signs certificates that live as long as a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	ok(t, err)
	cert, err := x509.ParseCertificate(der)
	ok(t, err)
	return &authority{cert, key}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func (a *authority) issue(t *testing.T, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	ok(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
