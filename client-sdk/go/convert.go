// Conversion of protocol messages to the types and errors of this package.

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

// errorByReason maps the reasons of rejected calls to errors. Reasons of lost leases are in lostByReason.
var errorByReason = map[pb.ErrorReason]error{
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

var lostByReason = map[pb.ErrorReason]LostReason{
	pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED:   LostExpired,
	pb.ErrorReason_ERROR_REASON_LEASE_REVOKED:   LostRevoked,
	pb.ErrorReason_ERROR_REASON_LEASE_NOT_FOUND: LostByStore,
	pb.ErrorReason_ERROR_REASON_STALE_ATTACH:    LostMoved,
}

var lostByEndReason = map[pb.LeaseEndReason]LostReason{
	pb.LeaseEndReason_LEASE_END_REASON_RELEASED:           LostReleased,
	pb.LeaseEndReason_LEASE_END_REASON_EXPIRED:            LostExpired,
	pb.LeaseEndReason_LEASE_END_REASON_REVOKED:            LostRevoked,
	pb.LeaseEndReason_LEASE_END_REASON_STORE_LOST:         LostByStore,
	pb.LeaseEndReason_LEASE_END_REASON_MAX_HOLD:           LostMaxHold,
	pb.LeaseEndReason_LEASE_END_REASON_MOVED:              LostMoved,
	pb.LeaseEndReason_LEASE_END_REASON_CREDENTIAL_EXPIRED: LostCredentialExpired,
}

var closureByCause = map[pb.ClosureCause]ClosureCause{
	pb.ClosureCause_CLOSURE_CAUSE_LOCK_DELAY: ClosureLockDelay,
	pb.ClosureCause_CLOSURE_CAUSE_AT_LEAST:   ClosureAtLeast,
	pb.ClosureCause_CLOSURE_CAUSE_OPERATOR:   ClosureOperator,
}

// durationOf converts a duration; an unset or negative one becomes 0.
func durationOf(duration *durationpb.Duration) time.Duration {
	return max(0, duration.AsDuration())
}

func holderOf(message *pb.Holder) Holder {
	holder := Holder{
		LeaseID:      message.GetLeaseId(),
		Owner:        message.GetOwner().GetId(),
		Reason:       message.GetOwner().GetReason(),
		FencingToken: message.GetFencingToken(),
		Remaining:    durationOf(message.GetRemaining()),
	}
	if message.GetSinceTime() != nil {
		holder.Since = message.GetSinceTime().AsTime()
	}
	return holder
}

func holdersOf(messages []*pb.Holder) []Holder {
	holders := make([]Holder, len(messages))
	for i, message := range messages {
		holders[i] = holderOf(message)
	}
	return holders
}

func closureOf(message *pb.Closure) *Closure {
	if message == nil {
		return nil
	}
	closure := &Closure{
		Cause:     closureByCause[message.GetCause()],
		Owner:     message.GetOwner().GetId(),
		Reason:    message.GetOwner().GetReason(),
		Remaining: durationOf(message.GetRemaining()),
	}
	if message.GetUntilTime() != nil {
		closure.Until = message.GetUntilTime().AsTime()
	}
	return closure
}

func recoveryOf(message *pb.StoreRecovery) *StoreRecovery {
	if message == nil {
		return nil
	}
	recovery := &StoreRecovery{Cause: message.GetCause(), Remaining: durationOf(message.GetRemaining())}
	if message.GetSinceTime() != nil {
		recovery.Since = message.GetSinceTime().AsTime()
	}
	return recovery
}

// recoveryFromRefused returns the recovery of the store for which a call was rejected; nil if there is none.
func recoveryFromRefused(refused *pb.Refused) *StoreRecovery {
	message := &pb.StoreRecovery{}
	for _, detail := range refused.GetDetails() {
		if unpackDetail(detail, message) {
			return recoveryOf(message)
		}
	}
	return nil
}

func permitUsageOf(message *pb.PermitUsage) *PermitUsage {
	if message == nil {
		return nil
	}
	return &PermitUsage{
		Limit: int(message.GetLimit()), Used: int(message.GetUsed()), IsLimitSet: message.GetIsLimitSet(),
	}
}

// errorFromRefused returns the error of a rejected call: an *Error or a *LeaseLostError.
func errorFromRefused(refused *pb.Refused) error {
	if _, ok := lostByReason[refused.GetReason()]; ok {
		return lossFromRefused(refused)
	}
	rejected := &Error{
		Err: errorByReason[refused.GetReason()], Message: refused.GetMessage(),
		RetryAfter: durationOf(refused.GetRetryAfter()),
	}
	if rejected.Err == nil {
		rejected.Err = ErrOther
	}
	contention := &pb.Contention{}
	for _, detail := range refused.GetDetails() {
		if unpackDetail(detail, contention) {
			rejected.Holders = holdersOf(contention.GetHolders())
			rejected.QueueLength = int(contention.GetQueueLength())
			rejected.Closure = closureOf(contention.GetClosure())
		}
	}
	return rejected
}

// lossFromRefused returns the loss that a rejection means for the holder of a lease.
func lossFromRefused(refused *pb.Refused) *LeaseLostError {
	return newLoss(lostByReason[refused.GetReason()], refused.GetMessage())
}

// lossFromEnded returns the loss that the broker reports with the end of a lease.
func lossFromEnded(ended *pb.LeaseEnded) *LeaseLostError {
	return newLoss(lostByEndReason[ended.GetReason()], ended.GetMessage())
}

func newLoss(reason LostReason, message string) *LeaseLostError {
	switch reason {
	case 0:
		return &LeaseLostError{Reason: LostOther, Message: message}
	case LostRevoked:
		return &LeaseLostError{Reason: reason, Message: message}
	}
	return &LeaseLostError{Reason: reason}
}

// isRetryable returns true if the rejected call must be repeated, because its outcome is unknown or the rejection is
// temporary. This includes cancelled calls: the broker also cancels a wait if it has received nothing from the client
// for too long.
func isRetryable(refused *pb.Refused) bool {
	switch codes.Code(refused.GetCode()) {
	case codes.Unavailable, codes.Canceled, codes.Unknown, codes.DeadlineExceeded:
		return true
	}
	return false
}

// refusedFromStatus converts the error of a unary call to the rejection that a stream would have sent for the same
// call.
func refusedFromStatus(err error) *pb.Refused {
	grpcStatus := status.Convert(err).Proto()
	refused := &pb.Refused{Code: grpcStatus.GetCode(), Message: grpcStatus.GetMessage()}
	info, retry := &errdetails.ErrorInfo{}, &errdetails.RetryInfo{}
	for _, detail := range grpcStatus.GetDetails() {
		switch {
		case unpackDetail(detail, info):
			refused.Reason = pb.ErrorReason(pb.ErrorReason_value["ERROR_REASON_"+info.GetReason()])
		case unpackDetail(detail, retry):
			refused.RetryAfter = retry.GetRetryDelay()
		default:
			refused.Details = append(refused.Details, detail)
		}
	}
	return refused
}

func unpackDetail(detail *anypb.Any, message proto.Message) bool {
	return detail.MessageIs(message) && detail.UnmarshalTo(message) == nil
}
