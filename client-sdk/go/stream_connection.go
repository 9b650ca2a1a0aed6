// One lease stream of a client: its calls, heartbeats, and the silence of the broker.

package leasehold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
	"leasehold.dev/sdk/internal/clock"
)

const (
	// heartbeatsStoredMax is the number of heartbeats whose send time is stored. Acknowledgements of older ones are
	// ignored.
	heartbeatsStoredMax = 256
	// callTimeout is the timeout of a unary call. A release is repeated after it.
	callTimeout = 5 * time.Second
	// livenessTimeout is the longest silence of the broker before a health check, and the timeout of that health check.
	// The broker removes a queue position 6 s after the last heartbeat, so a dead connection must be detected earlier.
	// Heartbeats alone cannot detect it: the broker does not acknowledge heartbeats of a stream without leases.
	livenessTimeout = 2 * time.Second
)

// callKind is the kind of a call on the stream.
type callKind int

const (
	callIgnored callKind = iota
	callAcquire
	callAttach
	callRelease
	callPartialRelease
	callCredential
)

// callSubject is the subject of a call on the stream: an acquire by its request id, a lease by its id, or a partial
// release by its lease id and number.
type callSubject struct {
	kind          callKind
	key           string
	releaseNumber int
}

type pendingCall struct {
	subject callSubject
	sentAt  time.Duration
}

// streamConnection is a stream with a separate connection. The client's lock guards everything except reading and
// writing.
type streamConnection struct {
	endpoints     *brokerEndpoints
	endpoint      endpoint
	openStartedAt time.Duration
	// ctx contains no credential.
	ctx    context.Context
	cancel context.CancelFunc
	conn   *grpc.ClientConn
	out    *outbox

	pendingCalls map[int64]pendingCall
	lastCallID   int64
	// heartbeats is the send times of the newest heartbeats, by sequence number modulo heartbeatsStoredMax.
	heartbeats    [heartbeatsStoredMax]time.Duration
	lastHeartbeat int64
	// unansweredSince is the send time of the first heartbeat since the last received message; 0 if there is none.
	unansweredSince      time.Duration
	lastMessageAt        time.Duration
	isHealthCheckRunning bool
	// credential is the credential that the broker accepted for the stream. refreshingCredential is the one of a pending
	// refresh.
	credential           string
	refreshingCredential string
	credentialCheckedAt  time.Duration
}

func newStreamConnection(endpoints *brokerEndpoints, endpointIndex int) *streamConnection {
	ctx, cancel := context.WithCancel(context.Background())
	return &streamConnection{
		endpoints:           endpoints,
		endpoint:            endpoints.list[endpointIndex%len(endpoints.list)],
		openStartedAt:       clock.Now(),
		ctx:                 ctx,
		credentialCheckedAt: clock.Now(),
		cancel:              cancel,
		out:                 newOutbox(),
		pendingCalls:        map[int64]pendingCall{},
	}
}

// run opens the stream and passes its messages to the session until the stream ends.
func (c *streamConnection) run(s *session) {
	defer c.cancel()
	stream, err := c.open()
	if err != nil {
		s.runtime.mu.Lock()
		defer s.runtime.mu.Unlock()
		s.failover.onOpenFailed(c, c.describeFailure(err), status.Code(err) == codes.Unauthenticated)
		return
	}
	defer c.conn.Close()
	s.runtime.mu.Lock()
	s.failover.onOpened(c)
	s.runtime.mu.Unlock()
	go c.writeMessages(stream)
	for {
		response, err := stream.Recv()
		s.runtime.mu.Lock()
		if err != nil {
			s.onDisconnect(c)
			s.runtime.mu.Unlock()
			return
		}
		s.onMessage(c, response)
		s.runtime.mu.Unlock()
	}
}

func (c *streamConnection) open() (pb.LockService_HoldClient, error) {
	credential, err := c.endpoints.credentials.authorization()
	if err != nil {
		return nil, err
	}
	c.credential = credential
	conn, err := c.endpoints.connect(c.endpoint)
	if err != nil {
		return nil, err
	}
	c.conn = conn
	stream, err := pb.NewLockServiceClient(conn).Hold(withCredential(c.ctx, credential))
	if err != nil {
		conn.Close()
		return nil, err
	}
	// The stream is open once the broker's headers arrive. Without headers the stream was rejected, and receiving
	// returns the reason.
	header, err := stream.Header()
	if err == nil && header == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return stream, nil
}

func (c *streamConnection) writeMessages(stream pb.LockService_HoldClient) {
	for {
		messages := c.out.takeAll(c.ctx)
		if len(messages) == 0 {
			// Errors of sending are reported by the receiving side.
			_ = stream.CloseSend()
			return
		}
		for _, message := range messages {
			if stream.Send(message) != nil {
				return
			}
		}
	}
}

// describeFailure returns the reason for which a stream did not open.
func (c *streamConnection) describeFailure(err error) string {
	if errors.Is(err, ErrInvalidCredential) {
		return err.Error()
	}
	grpcStatus := status.Convert(err)
	hint := ""
	if c.endpoint.isTLS && grpcStatus.Code() == codes.Unavailable {
		// In TLS 1.3 the server rejects a client after the client's side of the handshake, and the reason may get lost.
		hint = "; the broker may require a client certificate"
	}
	return fmt.Sprintf("%s: %s: %s%s", c.endpoint.name, grpcStatus.Code(), grpcStatus.Message(), hint)
}

// recordMessage records that the broker has sent a message.
func (c *streamConnection) recordMessage() {
	c.unansweredSince = 0
	c.lastMessageAt = clock.Now()
}

// nextCallID returns a new call id of the stream.
func (c *streamConnection) nextCallID() int64 {
	c.lastCallID++
	return c.lastCallID
}

// sendCall sends a call. callID must come from nextCallID.
func (c *streamConnection) sendCall(callID int64, subject callSubject, message *pb.HoldRequest) {
	c.pendingCalls[callID] = pendingCall{subject, clock.Now()}
	c.out.put(message)
}

// complete removes the call of a response, and returns its subject and send time.
func (c *streamConnection) complete(callID int64) (pendingCall, bool) {
	call, ok := c.pendingCalls[callID]
	delete(c.pendingCalls, callID)
	return call, ok
}

// sendHeartbeat sends a heartbeat. Its time is recorded before the message is queued, so the recorded time is never
// later than the sending.
func (c *streamConnection) sendHeartbeat() {
	now := clock.Now()
	if c.unansweredSince == 0 {
		c.unansweredSince = now
	}
	c.lastHeartbeat++
	c.heartbeats[c.lastHeartbeat%heartbeatsStoredMax] = now
	heartbeat := &pb.Heartbeat{Sequence: c.lastHeartbeat}
	c.out.put(&pb.HoldRequest{Message: &pb.HoldRequest_Heartbeat{Heartbeat: heartbeat}})
}

// heartbeatSentAt returns the send time of a heartbeat, if it is still stored.
func (c *streamConnection) heartbeatSentAt(sequence int64) (time.Duration, bool) {
	if sequence < 1 || sequence > c.lastHeartbeat || sequence <= c.lastHeartbeat-heartbeatsStoredMax {
		return 0, false
	}
	return c.heartbeats[sequence%heartbeatsStoredMax], true
}

// lastHeartbeatSentAt returns the send time of the newest heartbeat.
func (c *streamConnection) lastHeartbeatSentAt() (time.Duration, bool) {
	return c.heartbeatSentAt(c.lastHeartbeat)
}

// releaseByUnaryCall sends a release as a unary call.
func (c *streamConnection) releaseByUnaryCall(lease *pb.Lease) error {
	credential, err := c.endpoints.credentials.authorization()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(withCredential(c.ctx, credential), callTimeout)
	defer cancel()
	_, err = pb.NewLockServiceClient(c.conn).Release(ctx, &pb.ReleaseRequest{Lease: lease})
	return err
}

// isHealthy sends a health check and waits for the response. It returns false if there is none within livenessTimeout.
func (c *streamConnection) isHealthy() bool {
	ctx, cancel := context.WithTimeout(c.ctx, livenessTimeout)
	defer cancel()
	_, err := healthpb.NewHealthClient(c.conn).Check(ctx, &healthpb.HealthCheckRequest{})
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Unavailable, codes.Canceled:
		return false
	}
	// A rejection is a response.
	return true
}

// close closes the stream in an orderly way: the broker releases every lease that is attached to it, and ends the
// stream.
func (c *streamConnection) close() {
	c.out.put(&pb.HoldRequest{Message: &pb.HoldRequest_Close{Close: &pb.Close{}}})
	c.out.close()
}
