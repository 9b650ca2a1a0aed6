// What a broker says, in the words of this package.

package leasehold

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

// The reasons that mean the same to every caller.
var refusals = map[pb.ErrorReason]error{
	pb.ErrorReason_ERROR_REASON_LOCK_HELD:            ErrHeld,
	pb.ErrorReason_ERROR_REASON_WAIT_TIMEOUT:         ErrWaitTimeout,
	pb.ErrorReason_ERROR_REASON_STILL_QUEUED:         ErrWaitTimeout,
	pb.ErrorReason_ERROR_REASON_LIMIT_MISMATCH:       ErrLimitMismatch,
	pb.ErrorReason_ERROR_REASON_UPGRADE_DENIED:       ErrUpgradeDenied,
	pb.ErrorReason_ERROR_REASON_INVALID_FIELD:        ErrInvalid,
	pb.ErrorReason_ERROR_REASON_QUEUE_FULL:           ErrQueueFull,
	pb.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED:       ErrQuotaExceeded,
	pb.ErrorReason_ERROR_REASON_TOO_MANY_LEASES:      ErrQuotaExceeded,
	pb.ErrorReason_ERROR_REASON_STORE_FULL:           ErrStoreFull,
	pb.ErrorReason_ERROR_REASON_UNSUPPORTED_BY_STORE: ErrUnsupportedByStore,
	pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED:      ErrUnauthenticated,
	pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED:    ErrPermissionDenied,
	pb.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE:    ErrUnavailable,
	pb.ErrorReason_ERROR_REASON_DRAINING:             ErrUnavailable,
	pb.ErrorReason_ERROR_REASON_OVERLOADED:           ErrUnavailable,
	pb.ErrorReason_ERROR_REASON_TOO_MANY_ATTEMPTS:    ErrUnavailable,
	pb.ErrorReason_ERROR_REASON_STORE_RECOVERING:     ErrStoreRecovering,
	pb.ErrorReason_ERROR_REASON_INTERNAL:             ErrInternal,
}

var losses = map[pb.ErrorReason]LostReason{
	pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED:   LostExpired,
	pb.ErrorReason_ERROR_REASON_LEASE_REVOKED:   LostRevoked,
	pb.ErrorReason_ERROR_REASON_LEASE_NOT_FOUND: LostByStore,
	pb.ErrorReason_ERROR_REASON_STALE_ATTACH:    LostMoved,
}

var ends = map[pb.LeaseEndReason]LostReason{
	pb.LeaseEndReason_LEASE_END_REASON_RELEASED:           LostReleased,
	pb.LeaseEndReason_LEASE_END_REASON_EXPIRED:            LostExpired,
	pb.LeaseEndReason_LEASE_END_REASON_REVOKED:            LostRevoked,
	pb.LeaseEndReason_LEASE_END_REASON_STORE_LOST:         LostByStore,
	pb.LeaseEndReason_LEASE_END_REASON_MAX_HOLD:           LostMaxHold,
	pb.LeaseEndReason_LEASE_END_REASON_MOVED:              LostMoved,
	pb.LeaseEndReason_LEASE_END_REASON_CREDENTIAL_EXPIRED: LostCredentialExpired,
}

// span is a span of time; what is unset or negative is none.
func span(said *durationpb.Duration) time.Duration {
	return max(0, said.AsDuration())
}

func holderOf(one *pb.Holder) Holder {
	holder := Holder{
		LeaseID:      one.GetLeaseId(),
		Owner:        one.GetOwner().GetId(),
		Reason:       one.GetOwner().GetReason(),
		FencingToken: one.GetFencingToken(),
		Remaining:    span(one.GetRemaining()),
	}
	if one.GetSinceTime() != nil {
		holder.Since = one.GetSinceTime().AsTime()
	}
	return holder
}

func holdersOf(all []*pb.Holder) []Holder {
	holders := make([]Holder, len(all))
	for i, one := range all {
		holders[i] = holderOf(one)
	}
	return holders
}

// refusalOf is a call that was refused: an *Error or a *LeaseLostError.
func refusalOf(said *pb.Refused) error {
	if _, ok := losses[said.GetReason()]; ok {
		return lossOf(said)
	}
	refused := &Error{Err: refusals[said.GetReason()], Message: said.GetMessage(), RetryAfter: span(said.GetRetryAfter())}
	if refused.Err == nil {
		refused.Err = ErrOther
	}
	contention := &pb.Contention{}
	for _, detail := range said.GetDetails() {
		if read(detail, contention) {
			refused.Holders = holdersOf(contention.GetHolders())
			refused.QueueLength = int(contention.GetQueueLength())
		}
	}
	return refused
}

// lossOf is what a refusal means to the holder of a lease.
func lossOf(said *pb.Refused) *LeaseLostError {
	return lossFor(losses[said.GetReason()], said.GetMessage())
}

// endOf is the broker's word that a lease is over.
func endOf(said *pb.LeaseEnded) *LeaseLostError {
	return lossFor(ends[said.GetReason()], said.GetMessage())
}

func lossFor(reason LostReason, message string) *LeaseLostError {
	switch reason {
	case 0:
		return &LeaseLostError{Reason: LostOther, Message: message}
	case LostRevoked:
		return &LeaseLostError{Reason: reason, Message: message}
	}
	return &LeaseLostError{Reason: reason}
}

// isOpen says whether a call may have been done all the same, and is to be repeated. A wait is cancelled by the
// broker, too, if it has not heard of the client for long.
func isOpen(said *pb.Refused) bool {
	switch codes.Code(said.GetCode()) {
	case codes.Unavailable, codes.Canceled, codes.Unknown, codes.DeadlineExceeded:
		return true
	}
	return false
}

// statusOf is the status of a unary call, as the same call would have been refused on a stream.
func statusOf(err error) *pb.Refused {
	said := status.Convert(err).Proto()
	refused := &pb.Refused{Code: said.GetCode(), Message: said.GetMessage()}
	info, retry := &errdetails.ErrorInfo{}, &errdetails.RetryInfo{}
	for _, detail := range said.GetDetails() {
		switch {
		case read(detail, info):
			refused.Reason = pb.ErrorReason(pb.ErrorReason_value["ERROR_REASON_"+info.GetReason()])
		case read(detail, retry):
			refused.RetryAfter = retry.GetRetryDelay()
		default:
			refused.Details = append(refused.Details, detail)
		}
	}
	return refused
}

func read(detail *anypb.Any, into proto.Message) bool {
	return detail.MessageIs(into) && detail.UnmarshalTo(into) == nil
}
