"""Unit tests of the client's core: validity, clocks, conversion of messages, and the order of sent messages."""

from __future__ import annotations

import gc
import threading
import time
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyProto
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from leasehold import errors
from leasehold._core import clock, convert
from leasehold._core.clock import SuspendAwareClock
from leasehold._core.command import AcquireCommand, AcquireParams
from leasehold._core.leases import HeldLease, Leases
from leasehold._core.pending_acquires import PendingAcquire
from leasehold._core.session import Session
from leasehold._core.validity import LeaseValidity, safety_margin
from leasehold._core.worker import Worker
from leasehold.errors import Closure, ClosureCause, Loss, LostReason
from leasehold.v1 import lock_service_pb2 as hold
from leasehold.v1 import types_pb2 as pb

TTL = 10.0


def test_the_safety_margin_is_a_tenth_but_at_least_half_a_second_and_at_most_a_quarter() -> None:
    assert [safety_margin(ttl) for ttl in (60.0, 4.0, 1.0)] == [6.0, 0.5, 0.25]


def test_the_validity_ends_a_safety_margin_early() -> None:
    validity = LeaseValidity(clock.now() + TTL, TTL)
    assert validity.is_valid() and TTL - safety_margin(TTL) - 1 < validity.remaining() <= TTL - safety_margin(TTL)


def test_an_ended_validity_is_not_extended() -> None:
    validity = LeaseValidity(clock.now() + safety_margin(TTL), TTL)
    assert not validity.extend(clock.now() + TTL, TTL)
    assert not validity.is_valid() and validity.remaining() == 0
    assert validity.loss() == Loss(LostReason.EXPIRED)


def test_only_the_first_reason_is_kept() -> None:
    validity = LeaseValidity(clock.now() + TTL, TTL)
    notified: list[int] = []
    validity.add_end_hook(lambda: notified.append(1))
    validity.end(Loss(LostReason.STORE_LOST))
    validity.end(Loss(LostReason.EXPIRED))
    validity.add_end_hook(lambda: notified.append(2))
    assert validity.loss() == Loss(LostReason.STORE_LOST) and notified == [1, 2]


def test_an_extension_never_shortens_the_validity() -> None:
    validity = LeaseValidity(clock.now() + TTL, TTL)
    assert validity.extend(clock.now() + TTL / 2, TTL)
    assert validity.remaining() > TTL / 2


def _held_lease(lease_id: str) -> HeldLease:
    params = AcquireParams((), pb.Owner(), "request")
    lease = pb.Lease(lease_id=lease_id, ttl=convert.to_duration(TTL))
    # The caller receives no result in this test.
    pending = PendingAcquire(AcquireCommand(params, 0.0, cast(Any, None)))
    held_lease = HeldLease(lease, pending, clock.now())
    held_lease.undelivered, held_lease.validity = None, LeaseValidity(held_lease.valid_until, held_lease.ttl)
    return held_lease


def test_lost_leases_that_are_never_released_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    started_at, passed = clock.now(), 0.0
    monkeypatch.setattr(clock, "now", lambda: started_at + passed)
    session = SimpleNamespace(connection=None, pending_acquires=SimpleNamespace(send_under=lambda _: None))
    leases = Leases(cast(Session, session))

    leases.all["revoked"] = _held_lease("revoked")
    leases.on_lost("revoked", Loss(LostReason.REVOKED))
    leases.all["expired"] = _held_lease("expired")
    passed = TTL
    leases.check_deadlines(clock.now())
    assert list(leases.lost) == ["revoked", "expired"], "the store may still have both"
    leases.all["last"] = _held_lease("last")
    passed = 1.5 * TTL + 1
    leases.on_lost("last", Loss(LostReason.MAX_HOLD))
    assert list(leases.lost) == ["last"]


def test_the_clock_counts_a_suspend_that_the_monotonic_clock_omits() -> None:
    suspend_aware = SuspendAwareClock(0, 100)
    assert suspend_aware.advance(1, 101) == 1
    assert suspend_aware.advance(1, 401) == 301


def test_a_wall_clock_set_back_does_not_stop_the_clock() -> None:
    suspend_aware = SuspendAwareClock(0, 0)
    assert suspend_aware.advance(1, 3_601) == 3_601
    assert suspend_aware.advance(2, 2) == 3_602
    assert suspend_aware.advance(3, 3) == 3_603


def test_the_clock_is_the_boot_time_clock() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= clock.now() <= time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize("time_in_seconds", [0.0, 0.1, 0.3, 1.0, 2.9999999999, 3600.0])
def test_durations_survive_the_conversion(time_in_seconds: float) -> None:
    message = convert.to_duration(time_in_seconds)
    assert abs(convert.to_seconds(message) - time_in_seconds) < 1e-8 and 0 <= message.nanos < 10**9


def test_every_error_reason_has_a_class() -> None:
    classes = {}
    for name in pb.ErrorReason.keys():  # noqa: SIM118
        refused = hold.Refused(reason=name, message="why", retry_after=Duration(seconds=2))
        classes[name.replace("ERROR_REASON_", "")] = type(convert.error_from_refused(refused))
    unknown = {name for name, kind in classes.items() if kind is errors.Other}
    assert unknown == {
        "UNSPECIFIED", "STALE_TOKEN", "NOT_HOLDER", "REQUEST_ID_REUSED", "CANCELLED", "CALL_ID_REUSED",
    }  # fmt: skip
    assert classes["LOCK_HELD"] is errors.Held and classes["STALE_ATTACH"] is errors.LeaseLost
    later = convert.error_from_refused(hold.Refused(reason=pb.ERROR_REASON_STORE_FULL, retry_after=Duration(seconds=2)))
    assert later.retry_after == 2 and later.holders == ()


def test_an_unknown_reason_becomes_other() -> None:
    refused = hold.Refused.FromString(hold.Refused(call_id=1, code=9).SerializeToString() + b"\x10\xe7\x07")
    assert isinstance(convert.error_from_refused(refused), errors.Other)


class _Status(grpc.RpcError):
    def __init__(self, details: list[AnyProto]) -> None:
        status = status_pb2.Status(code=10, details=details)
        self._metadata = (("x", "y"), ("grpc-status-details-bin", status.SerializeToString()))

    def code(self) -> grpc.StatusCode:
        """Behaves like the method of a call."""
        return grpc.StatusCode.ABORTED

    def details(self) -> str:
        """Behaves like the method of a call."""
        return "held"

    def trailing_metadata(self) -> Any:
        """Behaves like the method of a call."""
        return self._metadata


def test_a_unary_status_converts_like_a_stream_rejection() -> None:
    packed = [AnyProto(), AnyProto(), AnyProto()]
    packed[0].Pack(error_details_pb2.ErrorInfo(reason="LOCK_HELD", domain="leasehold.dev"))
    packed[1].Pack(error_details_pb2.RetryInfo(retry_delay=Duration(seconds=3)))
    contention = pb.Contention(holders=[pb.Holder(owner=pb.Owner(id="me"))], queue_length=4)
    packed[2].Pack(contention)
    error = convert.error_from_refused(convert.refused_from_status(_Status(packed)))
    assert isinstance(error, errors.Held)
    assert (error.retry_after, error.queue_length, error.holders[0].owner) == (3, 4, "me")


def _closed_error(closure: pb.Closure) -> errors.Held:
    refused = hold.Refused(reason=pb.ERROR_REASON_LOCK_HELD, message="a is closed")
    refused.details.add().Pack(pb.Contention(closure=closure))
    error = convert.error_from_refused(refused)
    assert isinstance(error, errors.Held)
    return error


def test_the_error_says_by_whom_the_lock_is_closed() -> None:
    owner = pb.Owner(id="ops", reason="database migration")
    closure = pb.Closure(cause=pb.CLOSURE_CAUSE_OPERATOR, owner=owner, remaining=Duration(seconds=30))
    closure.until_time.FromSeconds(60)
    error = _closed_error(closure)
    until = datetime(1970, 1, 1, 0, 1, tzinfo=timezone.utc)
    assert error.closure == Closure(ClosureCause.OPERATOR, "ops", "database migration", until, 30)
    assert str(error) == "a is closed; closed by ops (database migration)"


def test_a_closure_of_a_newer_broker_or_of_a_hidden_owner_is_accepted() -> None:
    error = _closed_error(pb.Closure.FromString(b"\x08\x63"))
    assert error.closure == Closure(ClosureCause.OTHER, "", "", None, 0)
    assert str(error) == "a is closed"


def test_a_failing_job_does_not_stop_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker("test", lambda _: None, lambda: True)
    done = threading.Event()
    worker.post(lambda: 1 / 0)
    worker.post(done.set)
    assert done.wait(5) and "ZeroDivisionError" in caplog.text
    worker.post(worker.stop)


def test_a_stopped_worker_runs_late_jobs() -> None:
    worker = Worker("test", lambda _: None, lambda: True)
    ended = threading.Event()
    worker.post(worker.stop)
    while worker.is_started and not ended.is_set():
        worker.post(ended.set)
    assert ended.wait(5)


def test_a_busy_worker_checks_deadlines() -> None:
    ticks: list[float] = []
    worker = Worker("test", ticks.append, lambda: False)
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        worker.post(len, ())
        time.sleep(0.001)
    worker.post(worker.stop)
    gc.collect()
    assert len(ticks) >= 5
