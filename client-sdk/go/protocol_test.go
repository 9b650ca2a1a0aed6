// Unit tests of the protocol rules: conversion of errors, order of messages, and timing.

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
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

func TestEveryReasonHasItsError(t *testing.T) {
	// Callers receive these reasons as other errors or not at all.
	others := map[string]bool{
		"UNSPECIFIED": true, "STALE_TOKEN": true, "NOT_HOLDER": true, "REQUEST_ID_REUSED": true, "CANCELLED": true,
		"CALL_ID_REUSED": true,
	}
	for number, name := range pb.ErrorReason_name {
		name = strings.TrimPrefix(name, "ERROR_REASON_")
		refused := &pb.Refused{Reason: pb.ErrorReason(number), Message: "why", RetryAfter: durationpb.New(2 * time.Second)}
		err := errorFromRefused(refused)
		if errors.Is(err, ErrOther) != others[name] {
			t.Errorf("%s: %v", name, err)
		}
		var detailed *Error
		if errors.As(err, &detailed) && (detailed.RetryAfter != 2*time.Second || detailed.Message != "why") {
			t.Errorf("%s: %+v", name, detailed)
		}
	}
}

func TestReasonsOfANewerBrokerAreTolerated(t *testing.T) {
	if err := errorFromRefused(&pb.Refused{Reason: 999, Message: "new"}); !errors.Is(err, ErrOther) {
		t.Error(err)
	}
	loss := lossFromEnded(&pb.LeaseEnded{Reason: 999, Message: "new"})
	if loss.Reason != LostOther || loss.Message != "new" || loss.Reason.String() != "lost" {
		t.Error(loss)
	}
}

func TestMessagesOfANewerBrokerAreTolerated(t *testing.T) {
	s := &session{runtime: &clientRuntime{}}
	s.connection = newStreamConnection(&brokerEndpoints{list: make([]endpoint, 1)}, 0)
	unknown := &pb.HoldResponse{}
	if err := proto.Unmarshal([]byte{0xfa, 0x01, 0x02, 0x08, 0x01}, unknown); err != nil {
		t.Fatal(err)
	}
	s.connection.unansweredSince = 1
	s.onMessage(s.connection, unknown)
	if s.connection.unansweredSince != 0 {
		t.Error("the message did not count as a sign of life")
	}
}

func TestTheReasonOfAUnaryCallIsInItsDetails(t *testing.T) {
	grpcStatus := status.New(codes.Aborted, "the lock is held")
	grpcStatus, err := grpcStatus.WithDetails(
		&errdetails.ErrorInfo{Reason: "LOCK_HELD", Domain: "leasehold.dev"},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(3 * time.Second)},
		&pb.Contention{QueueLength: 4, Holders: []*pb.Holder{{Owner: &pb.Owner{Id: "me"}}}},
	)
	if err != nil {
		t.Fatal(err)
	}
	var detailed *Error
	err = errorFromRefused(refusedFromStatus(grpcStatus.Err()))
	if !errors.As(err, &detailed) || !errors.Is(err, ErrHeld) {
		t.Fatal(err)
	}
	if detailed.RetryAfter != 3*time.Second || detailed.QueueLength != 4 || detailed.Holders[0].Owner != "me" {
		t.Errorf("%+v", detailed)
	}
	plain := refusedFromStatus(errors.New("broken"))
	if !isRetryable(plain) || plain.GetReason() != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		t.Errorf("%v", plain)
	}
}

func TestTheErrorSaysByWhomTheLockIsClosed(t *testing.T) {
	until := time.Unix(60, 0).UTC()
	operator := &pb.Owner{Id: "ops", Reason: "database migration"}
	for _, c := range []struct {
		message *pb.Closure
		want    Closure
		text    string
	}{
		{
			&pb.Closure{
				Cause: pb.ClosureCause_CLOSURE_CAUSE_OPERATOR, Owner: operator,
				UntilTime: timestamppb.New(until), Remaining: durationpb.New(30 * time.Second),
			},
			Closure{ClosureOperator, "ops", "database migration", until, 30 * time.Second},
			"leasehold: a is closed; closed by ops (database migration)",
		},
		// A cause of a newer broker, and an owner that the caller may not observe.
		{&pb.Closure{Cause: 99}, Closure{}, "leasehold: a is closed"},
	} {
		detail, err := anypb.New(&pb.Contention{Closure: c.message})
		if err != nil {
			t.Fatal(err)
		}
		err = errorFromRefused(&pb.Refused{
			Reason: pb.ErrorReason_ERROR_REASON_LOCK_HELD, Message: "a is closed", Details: []*anypb.Any{detail},
		})
		var detailed *Error
		if !errors.As(err, &detailed) || detailed.Closure == nil || *detailed.Closure != c.want || err.Error() != c.text {
			t.Errorf("%v %+v", err, detailed)
		}
	}
}

func TestDetailsThatCannotBeDecodedAreIgnored(t *testing.T) {
	undecodable := &anypb.Any{TypeUrl: "type.googleapis.com/leasehold.v1.Contention", Value: []byte{0xff}}
	refused := &pb.Refused{
		Reason: pb.ErrorReason_ERROR_REASON_LOCK_HELD, Message: "why", Details: []*anypb.Any{undecodable},
	}
	if err := errorFromRefused(refused); !errors.Is(err, ErrHeld) {
		t.Error(err)
	}
}

func TestOnlyTheNewestHeartbeatsCount(t *testing.T) {
	c := newStreamConnection(&brokerEndpoints{list: make([]endpoint, 1)}, 0)
	if _, isStored := c.lastHeartbeatSentAt(); isStored {
		t.Error("a send time without a heartbeat")
	}
	for range heartbeatsStoredMax + 10 {
		c.sendHeartbeat()
	}
	for sequence, want := range map[int64]bool{
		0: false, 10: false, 11: true, heartbeatsStoredMax + 10: true, heartbeatsStoredMax + 11: false,
		-1: false, math.MaxInt64: false,
	} {
		if _, isStored := c.heartbeatSentAt(sequence); isStored != want {
			t.Errorf("%d: %t", sequence, isStored)
		}
	}
	earlier, _ := c.heartbeatSentAt(heartbeatsStoredMax)
	if later, _ := c.heartbeatSentAt(heartbeatsStoredMax + 1); later < earlier {
		t.Errorf("%s after %s", later, earlier)
	}
}

func TestMessagesAreSentInTheirOrder(t *testing.T) {
	out := newOutbox()
	for sequence := range int64(3) {
		out.put(&pb.HoldRequest{Message: &pb.HoldRequest_Heartbeat{Heartbeat: &pb.Heartbeat{Sequence: sequence}}})
	}
	out.close()
	messages := out.takeAll(context.Background())
	for i, message := range messages {
		if message.GetHeartbeat().GetSequence() != int64(i) {
			t.Error(messages)
		}
	}
	if len(messages) != 3 || out.takeAll(context.Background()) != nil {
		t.Error(messages)
	}
}

func TestAllAttemptsOfAnAcquireHaveTheSameRequest(t *testing.T) {
	o, err := newAcquireOptions("me", []Target{{Name: "a"}, {Name: "b", Shared: true}}, []Option{
		WithTTL(3 * time.Second), WithMaxHold(0), WithReason("why"), WithLabel("k", "v"), WithWait(Forever),
	})
	if err != nil {
		t.Fatal(err)
	}
	o.params.requestID = "one"
	first := o.params.message(attempt{1, 1}, time.Minute, nil).GetAcquireAll()
	second := o.params.message(attempt{2, 2}, 0, nil).GetAcquireAll()
	if first.GetCallId() == second.GetCallId() || first.GetAttachNumber() == second.GetAttachNumber() {
		t.Error("two attempts have the same ids")
	}
	second.GetRequest().WaitTimeout = first.GetRequest().WaitTimeout
	if !proto.Equal(first.GetRequest(), second.GetRequest()) {
		t.Error(first, second)
	}
	if first.GetRequest().GetMaxHold() == nil || first.GetRequest().GetLockDelay() != nil {
		t.Error("0 is not the same as unset")
	}
}

func TestTheBackoffGrowsAndIsBounded(t *testing.T) {
	m := failover{session: &session{runtime: &clientRuntime{endpoints: &brokerEndpoints{list: make([]endpoint, 2)}}}}
	for failures, maximum := range map[int]time.Duration{
		0: 0, 1: 0, 2: 100 * time.Millisecond, 4: 200 * time.Millisecond, 1_000_000: time.Second,
	} {
		m.failures = failures
		if pause := m.backoff(); pause > maximum || pause < maximum/2 {
			t.Errorf("%s after %d failures", pause, failures)
		}
	}
}
