// One lease stream as its client sees it: what was sent when, and whether the other side answers.

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
	// beatsKept are remembered by their time of sending. An acknowledgement of an older one is of no use.
	beatsKept = 256
	// callLimit is for a unary call, which is then repeated.
	callLimit = 5 * time.Second
	// lifeLimit is for silence, and again for an answer to the question whether anybody is there. A dead connection
	// must be known before a place in line is given up, 6 s after the last heartbeat; heartbeats of a stream that
	// only waits are not answered.
	lifeLimit = 2 * time.Second
)

// kind is what a call of the stream does.
type kind int

const (
	kindNothing kind = iota
	kindAcquire
	kindAttach
	kindRelease
	kindPart
	kindCredential
)

// about is what a call of the stream is about: a request, a lease, or the part of one with this number.
type about struct {
	kind kind
	key  string
	part int
}

type sentCall struct {
	about about
	at    time.Duration
}

// link is one stream on a connection of its own. All but its reading and writing is done under the client's lock.
type link struct {
	brokers  *brokers
	endpoint endpoint
	begunAt  time.Duration
	// ctx shows nothing.
	ctx  context.Context
	cut  context.CancelFunc
	conn *grpc.ClientConn
	out  *outbox

	calls    map[int64]sentCall
	lastCall int64
	// beats are the times of sending of the newest heartbeats, by sequence.
	beats    [beatsKept]time.Duration
	lastBeat int64
	// silentSince is when the first heartbeat without any message after it was sent; 0: the other side has answered.
	silentSince time.Duration
	heardAt     time.Duration
	isAsked     bool
	// credential is what the broker knows the stream by, showing what it is to be from now on.
	credential string
	showing    string
	lookedAt   time.Duration
}

func newLink(brokers *brokers, at int) *link {
	ctx, cut := context.WithCancel(context.Background())
	return &link{
		brokers:  brokers,
		endpoint: brokers.endpoints[at%len(brokers.endpoints)],
		begunAt:  clock.Now(),
		ctx:      ctx,
		lookedAt: clock.Now(),
		cut:      cut,
		out:      newOutbox(),
		calls:    map[int64]sentCall{},
	}
}

// run opens the stream and tells the keeper what comes of it, until it ends.
func (l *link) run(k *keeper) {
	defer l.cut()
	stream, err := l.open()
	if err != nil {
		k.core.mu.Lock()
		defer k.core.mu.Unlock()
		k.moves.failed(l, l.whyNot(err), status.Code(err) == codes.Unauthenticated)
		return
	}
	defer l.conn.Close()
	k.core.mu.Lock()
	k.moves.opened(l)
	k.core.mu.Unlock()
	go l.write(stream)
	for {
		response, err := stream.Recv()
		k.core.mu.Lock()
		if err != nil {
			k.broken(l)
			k.core.mu.Unlock()
			return
		}
		k.hear(l, response)
		k.core.mu.Unlock()
	}
}

func (l *link) open() (pb.LockService_HoldClient, error) {
	credential, err := l.brokers.source.now()
	if err != nil {
		return nil, err
	}
	l.credential = credential
	conn, err := l.brokers.connect(l.endpoint)
	if err != nil {
		return nil, err
	}
	l.conn = conn
	stream, err := pb.NewLockServiceClient(conn).Hold(shown(l.ctx, credential))
	if err != nil {
		conn.Close()
		return nil, err
	}
	// It is open with the broker's headers. Without any it was refused, and the reason comes where it is read.
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

func (l *link) write(stream pb.LockService_HoldClient) {
	for {
		messages := l.out.take(l.ctx)
		if len(messages) == 0 {
			// An error is told where the stream is read, as are those below.
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

// whyNot is why a stream did not open.
func (l *link) whyNot(err error) string {
	if errors.Is(err, ErrInvalidCredential) {
		return err.Error()
	}
	said := status.Convert(err)
	hint := ""
	if l.endpoint.isTLS && said.Code() == codes.Unavailable {
		// TLS 1.3 refuses a client after its side of the handshake, and the reason may get lost.
		hint = "; does the broker want a client certificate?"
	}
	return fmt.Sprintf("%s: %s: %s%s", l.endpoint.name, said.Code(), said.Message(), hint)
}

// heard notes that the other side lives.
func (l *link) heard() {
	l.silentSince = 0
	l.heardAt = clock.Now()
}

// next is an id that no call of the stream has had.
func (l *link) next() int64 {
	l.lastCall++
	return l.lastCall
}

// call sends a call that has this id, from next.
func (l *link) call(callID int64, what about, message *pb.HoldRequest) {
	l.calls[callID] = sentCall{what, clock.Now()}
	l.out.put(message)
}

// answered is what an answer is about, and when that was sent.
func (l *link) answered(callID int64) (sentCall, bool) {
	call, ok := l.calls[callID]
	delete(l.calls, callID)
	return call, ok
}

// beat sends a heartbeat. Its time is noted before it is handed on, so it is never later than the sending.
func (l *link) beat() {
	now := clock.Now()
	if l.silentSince == 0 {
		l.silentSince = now
	}
	l.lastBeat++
	l.beats[l.lastBeat%beatsKept] = now
	beat := &pb.Heartbeat{Sequence: l.lastBeat}
	l.out.put(&pb.HoldRequest{Message: &pb.HoldRequest_Heartbeat{Heartbeat: beat}})
}

// beatSent is when a heartbeat was sent, if that is known.
func (l *link) beatSent(sequence int64) (time.Duration, bool) {
	if sequence < 1 || sequence > l.lastBeat || sequence <= l.lastBeat-beatsKept {
		return 0, false
	}
	return l.beats[sequence%beatsKept], true
}

// lastBeatSent is when the newest heartbeat was sent.
func (l *link) lastBeatSent() (time.Duration, bool) {
	return l.beatSent(l.lastBeat)
}

// release is a release by itself, beside the stream.
func (l *link) release(lease *pb.Lease) error {
	credential, err := l.brokers.source.now()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(shown(l.ctx, credential), callLimit)
	defer cancel()
	_, err = pb.NewLockServiceClient(l.conn).Release(ctx, &pb.ReleaseRequest{Lease: lease})
	return err
}

// isThere asks whether anybody is on the other side, and waits for the answer.
func (l *link) isThere() bool {
	ctx, cancel := context.WithTimeout(l.ctx, lifeLimit)
	defer cancel()
	_, err := healthpb.NewHealthClient(l.conn).Check(ctx, &healthpb.HealthCheckRequest{})
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Unavailable, codes.Canceled:
		return false
	}
	// A refusal is an answer.
	return true
}

// close ends it in good order: the broker releases every lease that is on it, and ends the stream.
func (l *link) close() {
	l.out.put(&pb.HoldRequest{Message: &pb.HoldRequest_Close{Close: &pb.Close{}}})
	l.out.close()
}
