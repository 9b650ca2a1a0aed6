// Connections and credentials: TLS, certificates, the bearer token and the trace context.

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

// recordingService records the metadata and messages that clients send, and sends no responses.
type recordingService struct {
	pb.UnimplementedLockServiceServer
	received chan receivedMessage
}

type receivedMessage struct {
	header  metadata.MD
	message *pb.HoldRequest
}

func (l *recordingService) Hold(stream pb.LockService_HoldServer) error {
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	header, _ := metadata.FromIncomingContext(stream.Context())
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		l.received <- receivedMessage{header, message}
	}
}

func startRecordingService(t *testing.T) (string, *recordingService) {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	server, l := grpc.NewServer(), &recordingService{received: make(chan receivedMessage, 100)}
	pb.RegisterLockServiceServer(server, l)
	go func() { _ = server.Serve(socket) }()
	t.Cleanup(server.Stop)
	return "http://" + socket.Addr().String(), l
}

func TestTheCredentialAndTheTraceContextAreSent(t *testing.T) {
	t.Parallel()
	url, l := startRecordingService(t)
	client := clientOf(t, url, leasehold.WithBearerToken(canary), leasehold.WithOwner("me"))
	parent := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	})
	ctx, cancel := context.WithCancel(trace.ContextWithSpanContext(t.Context(), parent))
	defer cancel()
	startLock(ctx, client, "a")
	first := <-l.received
	assert(t, first.header.Get("authorization")[0] == "Bearer "+canary, "the credential was not sent")
	acquire := first.message.GetAcquire()
	traceparent := acquire.GetTraceparent()
	assert(t, strings.HasPrefix(traceparent, "00-"+parent.TraceID().String()), "%q", traceparent)
	assert(t, len(acquire.GetRequest().GetRequestId()) == 36, "%q", acquire.GetRequest().GetRequestId())
	assert(t, acquire.GetAttachNumber() == 1, "%d", acquire.GetAttachNumber())
	assert(t, acquire.GetRequest().GetOwner().GetId() == "me", "%v", acquire.GetRequest().GetOwner())
}

func TestAChangedTokenOfTheFileIsSentToTheBroker(t *testing.T) {
	t.Parallel()
	url, l := startRecordingService(t)
	file := filepath.Join(t.TempDir(), "token")
	ok(t, os.WriteFile(file, []byte(canary+"\n"), 0o600))
	client := clientOf(t, url, leasehold.WithBearerTokenFile(file))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	startLock(ctx, client, "a")
	first := <-l.received
	assert(t, first.header.Get("authorization")[0] == "Bearer "+canary, "the credential was not sent")
	ok(t, os.WriteFile(file, []byte(canary+"-2\n"), 0o600))
	for received := range l.received {
		if refresh := received.message.GetRefreshCredential(); refresh != nil {
			assert(t, refresh.GetAuthorization() == "Bearer "+canary+"-2", "another credential was sent")
			return
		}
	}
}

func TestACredentialThatIsRejectedEverywhereFailsAtOnce(t *testing.T) {
	t.Parallel()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	rejectAll := func(any, grpc.ServerStream) error { return status.Error(codes.Unauthenticated, "unknown") }
	server := grpc.NewServer(grpc.UnknownServiceHandler(rejectAll))
	go func() { _ = server.Serve(socket) }()
	t.Cleanup(server.Stop)
	client := clientOf(t, "http://"+socket.Addr().String(), leasehold.WithBearerToken(canary))
	assertErr(t, client.Connect(t.Context()), leasehold.ErrCredentialRefused)
	_, err = client.Lock(t.Context(), "a", leasehold.WithWait(time.Minute))
	assertErr(t, err, leasehold.ErrUnauthenticated)
	assert(t, !strings.Contains(err.Error(), canary), "the error contains the credential")
}

func TestEveryAcquireRepeatsItsOwnRequestID(t *testing.T) {
	t.Parallel()
	url, l := startRecordingService(t)
	proxy := startProxyTo(t, strings.TrimPrefix(url, "http://"))
	client := clientOf(t, proxy.URL())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	nextAcquire := func() *pb.HoldAcquire {
		for received := range l.received {
			if acquire := received.message.GetAcquire(); acquire != nil {
				return acquire
			}
		}
		return nil
	}
	startLock(ctx, client, "a")
	first := nextAcquire()
	proxy.CloseConnections()
	repeated := nextAcquire()
	assert(t, repeated.GetRequest().GetRequestId() == first.GetRequest().GetRequestId(), "another request id")
	assert(t, repeated.GetAttachNumber() == first.GetAttachNumber()+1, "%d", repeated.GetAttachNumber())
	startLock(ctx, client, "a")
	assert(t, nextAcquire().GetRequest().GetRequestId() != first.GetRequest().GetRequestId(), "the same request id")
}

func TestInvalidSettingsAreRejected(t *testing.T) {
	t.Parallel()
	const validEndpoint = "http://127.0.0.1:1"
	for _, test := range []struct {
		endpoints string
		option    leasehold.ClientOption
		want      error
	}{
		{" , ", leasehold.WithOwner("me"), leasehold.ErrNoEndpoint},
		{"127.0.0.1:7070", leasehold.WithOwner("me"), leasehold.ErrInvalidEndpoint},
		{"ftp://a:7070", leasehold.WithOwner("me"), leasehold.ErrInvalidEndpoint},
		{"http://", leasehold.WithOwner("me"), leasehold.ErrInvalidEndpoint},
		{validEndpoint, leasehold.WithOwner(""), leasehold.ErrInvalidOwner},
		{validEndpoint, leasehold.WithOwner(strings.Repeat("x", 257)), leasehold.ErrInvalidOwner},
		{validEndpoint, leasehold.WithBearerToken("a\nb"), leasehold.ErrInvalidCredential},
		{validEndpoint, leasehold.WithBearerToken("t\u00fcr"), leasehold.ErrInvalidCredential},
		{validEndpoint, leasehold.WithBearerTokenFile("/nowhere"), leasehold.ErrInvalidCredential},
	} {
		_, err := leasehold.New(test.endpoints, test.option)
		assertErr(t, err, test.want)
		isNamed := test.want != leasehold.ErrInvalidEndpoint || strings.Contains(err.Error(), test.endpoints)
		assert(t, isNamed, "%v", err)
	}
	client, err := leasehold.New("https://[::1],http://a")
	ok(t, err)
	assert(t, strings.Contains(client.Owner(), ":"), "%s", client.Owner())
}

func TestATokenIsSentUnencryptedToOtherMachinesOnlyIfAllowed(t *testing.T) {
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
			assertErr(t, err, leasehold.ErrInsecureToken)
			assert(t, strings.Contains(err.Error(), url), "%v", err)
			assert(t, !strings.Contains(err.Error(), "secret"), "%v", err)
			_, err = leasehold.New(url, token, leasehold.WithAllowInsecureToken())
			ok(t, err)
			_, err = leasehold.New(url)
			ok(t, err)
		}
	}
}

func TestABrokerIsAuthenticatedByItsCertificateAuthority(t *testing.T) {
	t.Parallel()
	trustedCA, untrustedCA := newAuthority(t), newAuthority(t)
	serverCert := trustedCA.issue(t, x509.ExtKeyUsageServerAuth)
	clientCert := trustedCA.issue(t, x509.ExtKeyUsageClientAuth)
	url := startTLSProxy(t, sharedBroker(t).Addr, &tls.Config{
		Certificates: []tls.Certificate{serverCert}, ClientCAs: trustedCA.pool(), ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{"h2"},
	})
	connect := func(config *tls.Config) (*leasehold.Client, error) {
		client := clientOf(t, url, leasehold.WithTLS(config))
		return client, client.Connect(t.Context())
	}
	_, err := connect(&tls.Config{RootCAs: untrustedCA.pool(), Certificates: []tls.Certificate{clientCert}})
	assertErr(t, err, leasehold.ErrUnreachable)
	_, err = connect(&tls.Config{RootCAs: trustedCA.pool()})
	assertErr(t, err, leasehold.ErrUnreachable)
	assert(t, strings.Contains(err.Error(), "client certificate"), "%v", err)
	client, err := connect(&tls.Config{RootCAs: trustedCA.pool(), Certificates: []tls.Certificate{clientCert}})
	ok(t, err)
	lockAndRelease(t, client, lockName(t))
}

// startTLSProxy terminates TLS in front of a broker without TLS.
func startTLSProxy(t *testing.T, broker string, config *tls.Config) string {
	t.Helper()
	socket, err := tls.Listen("tcp", "127.0.0.1:0", config)
	ok(t, err)
	t.Cleanup(func() { socket.Close() })
	go func() {
		for {
			clientConn, err := socket.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			go forwardConnection(clientConn, broker)
		}
	}()
	return "https://" + socket.Addr().String()
}

func forwardConnection(clientConn net.Conn, broker string) {
	defer clientConn.Close()
	brokerConn, err := net.Dial("tcp", broker)
	if err != nil {
		return
	}
	defer brokerConn.Close()
	go func() {
		// The other direction detects the end of the connection.
		_, _ = io.Copy(brokerConn, clientConn)
		brokerConn.Close()
	}()
	_, _ = io.Copy(clientConn, brokerConn)
}

// certificateAuthority issues certificates that are valid for one hour.
type certificateAuthority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *certificateAuthority {
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
	return &certificateAuthority{cert, key}
}

func (a *certificateAuthority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func (a *certificateAuthority) issue(t *testing.T, usage x509.ExtKeyUsage) tls.Certificate {
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
