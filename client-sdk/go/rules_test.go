// The rules in small: what a broker says, what is sent in which order, and when.

package leasehold

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

func TestEveryReasonHasItsError(t *testing.T) {
	// Those that a caller hears of as something else: not at all, or only as what they end with.
	others := map[string]bool{
		"UNSPECIFIED": true, "STALE_TOKEN": true, "NOT_HOLDER": true, "REQUEST_ID_REUSED": true, "CANCELLED": true,
		"CALL_ID_REUSED": true,
	}
	for number, name := range pb.ErrorReason_name {
		name = strings.TrimPrefix(name, "ERROR_REASON_")
		said := &pb.Refused{Reason: pb.ErrorReason(number), Message: "why", RetryAfter: durationpb.New(2 * time.Second)}
		err := refusalOf(said)
		if errors.Is(err, ErrOther) != others[name] {
			t.Errorf("%s: %v", name, err)
		}
		var full *Error
		if errors.As(err, &full) && (full.RetryAfter != 2*time.Second || full.Message != "why") {
			t.Errorf("%s: %+v", name, full)
		}
	}
}

func TestReasonsOfANewerBrokerAreTolerated(t *testing.T) {
	if err := refusalOf(&pb.Refused{Reason: 999, Message: "new"}); !errors.Is(err, ErrOther) {
		t.Error(err)
	}
	loss := endOf(&pb.LeaseEnded{Reason: 999, Message: "new"})
	if loss.Reason != LostOther || loss.Message != "new" || loss.Reason.String() != "lost" {
		t.Error(loss)
	}
}

func TestMessagesOfANewerBrokerAreTolerated(t *testing.T) {
	k := &keeper{core: &core{}}
	k.link = newLink(&brokers{endpoints: make([]endpoint, 1)}, 0)
	unknown := &pb.HoldResponse{}
	if err := proto.Unmarshal([]byte{0xfa, 0x01, 0x02, 0x08, 0x01}, unknown); err != nil {
		t.Fatal(err)
	}
	k.link.silentSince = 1
	k.hear(k.link, unknown)
	if k.link.silentSince != 0 {
		t.Error("it is a sign of life all the same")
	}
}

func TestTheReasonOfAUnaryCallIsInItsDetails(t *testing.T) {
	said := status.New(codes.Aborted, "it is held")
	said, err := said.WithDetails(
		&errdetails.ErrorInfo{Reason: "LOCK_HELD", Domain: "leasehold.dev"},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(3 * time.Second)},
		&pb.Contention{QueueLength: 4, Holders: []*pb.Holder{{Owner: &pb.Owner{Id: "me"}}}},
	)
	if err != nil {
		t.Fatal(err)
	}
	var full *Error
	if err := refusalOf(statusOf(said.Err())); !errors.As(err, &full) || !errors.Is(err, ErrHeld) {
		t.Fatal(err)
	}
	if full.RetryAfter != 3*time.Second || full.QueueLength != 4 || full.Holders[0].Owner != "me" {
		t.Errorf("%+v", full)
	}
	plain := statusOf(errors.New("broken"))
	if !isOpen(plain) || plain.GetReason() != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		t.Errorf("%v", plain)
	}
}

func TestDetailsThatCannotBeReadAreLeftOut(t *testing.T) {
	broken := &anypb.Any{TypeUrl: "type.googleapis.com/leasehold.v1.Contention", Value: []byte{0xff}}
	said := &pb.Refused{Reason: pb.ErrorReason_ERROR_REASON_LOCK_HELD, Message: "why", Details: []*anypb.Any{broken}}
	if err := refusalOf(said); !errors.Is(err, ErrHeld) {
		t.Error(err)
	}
}

func TestOnlyTheNewestHeartbeatsCount(t *testing.T) {
	l := newLink(&brokers{endpoints: make([]endpoint, 1)}, 0)
	if _, known := l.lastBeatSent(); known {
		t.Error("none was sent")
	}
	for range beatsKept + 10 {
		l.beat()
	}
	for sequence, want := range map[int64]bool{
		0: false, 10: false, 11: true, beatsKept + 10: true, beatsKept + 11: false, -1: false, math.MaxInt64: false,
	} {
		if _, known := l.beatSent(sequence); known != want {
			t.Errorf("%d: %t", sequence, known)
		}
	}
	earlier, _ := l.beatSent(beatsKept)
	if later, _ := l.beatSent(beatsKept + 1); later < earlier {
		t.Errorf("%s after %s", later, earlier)
	}
}

func TestMessagesAreSentInTheirOrder(t *testing.T) {
	out := newOutbox()
	for sequence := range int64(3) {
		out.put(&pb.HoldRequest{Message: &pb.HoldRequest_Heartbeat{Heartbeat: &pb.Heartbeat{Sequence: sequence}}})
	}
	out.close()
	messages := out.take(context.Background())
	for i, message := range messages {
		if message.GetHeartbeat().GetSequence() != int64(i) {
			t.Error(messages)
		}
	}
	if len(messages) != 3 || out.take(context.Background()) != nil {
		t.Error(messages)
	}
}

func TestACallIsTheSameHoweverOftenItIsSent(t *testing.T) {
	p, err := newPlan("me", []Target{{Name: "a"}, {Name: "b", Shared: true}}, []Option{
		WithTTL(3 * time.Second), WithMaxHold(0), WithReason("why"), WithLabel("k", "v"), WithWait(Forever),
	})
	if err != nil {
		t.Fatal(err)
	}
	p.call.requestID = "one"
	first := p.call.message(sending{1, 1}, time.Minute, nil).GetAcquireAll()
	second := p.call.message(sending{2, 2}, 0, nil).GetAcquireAll()
	if first.GetCallId() == second.GetCallId() || first.GetAttachNumber() == second.GetAttachNumber() {
		t.Error("two sendings look alike")
	}
	second.GetRequest().WaitTimeout = first.GetRequest().WaitTimeout
	if !proto.Equal(first.GetRequest(), second.GetRequest()) {
		t.Error(first, second)
	}
	if first.GetRequest().GetMaxHold() == nil || first.GetRequest().GetLockDelay() != nil {
		t.Error("0 is not the same as unset")
	}
}

func TestPausesGrowAndAreBounded(t *testing.T) {
	m := moves{keeper: &keeper{core: &core{brokers: &brokers{endpoints: make([]endpoint, 2)}}}}
	for failures, most := range map[int]time.Duration{
		0: 0, 1: 0, 2: 100 * time.Millisecond, 4: 200 * time.Millisecond, 1_000_000: time.Second,
	} {
		m.failures = failures
		if pause := m.pause(); pause > most || pause < most/2 {
			t.Errorf("%s after %d failures", pause, failures)
		}
	}
}
