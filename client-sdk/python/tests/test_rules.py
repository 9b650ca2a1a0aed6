"""The rules in small: trust, clocks, what a broker says, and the order of what is sent."""

from __future__ import annotations

import gc
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyProto
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from leasehold import errors
from leasehold._core import clock, reading
from leasehold._core.clock import Larger
from leasehold._core.keeper import Keeper
from leasehold._core.leases import Leases, Owned
from leasehold._core.order import Ask, Call
from leasehold._core.trust import Trust, margin
from leasehold._core.waits import Wait
from leasehold._core.worker import Worker
from leasehold.errors import Loss, LostReason
from leasehold.v1 import lock_service_pb2 as hold
from leasehold.v1 import types_pb2 as pb

TTL = 10.0


def test_the_margin_is_a_tenth_but_at_least_half_a_second_and_at_most_a_quarter() -> None:
    assert [margin(ttl) for ttl in (60.0, 4.0, 1.0)] == [6.0, 0.5, 0.25]


def test_trust_ends_a_margin_before_the_validity() -> None:
    trust = Trust(clock.now() + TTL, TTL)
    assert trust.is_valid() and TTL - margin(TTL) - 1 < trust.remaining() <= TTL - margin(TTL)


def test_once_over_it_is_not_extended() -> None:
    trust = Trust(clock.now() + margin(TTL), TTL)
    assert not trust.extend(clock.now() + TTL, TTL)
    assert not trust.is_valid() and trust.remaining() == 0
    assert trust.loss() == Loss(LostReason.EXPIRED)


def test_the_first_reason_stays() -> None:
    trust = Trust(clock.now() + TTL, TTL)
    told: list[int] = []
    trust.on_end(lambda: told.append(1))
    trust.end(Loss(LostReason.STORE_LOST))
    trust.end(Loss(LostReason.EXPIRED))
    trust.on_end(lambda: told.append(2))
    assert trust.loss() == Loss(LostReason.STORE_LOST) and told == [1, 2]


def test_an_extension_never_shortens() -> None:
    trust = Trust(clock.now() + TTL, TTL)
    assert trust.extend(clock.now() + TTL / 2, TTL)
    assert trust.remaining() > TTL / 2


def _held(lease_id: str) -> Owned:
    call = Call((), pb.Owner(), "request")
    lease = pb.Lease(lease_id=lease_id, ttl=reading.duration(TTL))
    # Its caller waits for nothing.
    wait = Wait(Ask(call, 0.0, cast(Any, None)))
    owned = Owned(lease, wait, clock.now())
    owned.unborn, owned.trust = None, Trust(owned.valid_until, owned.ttl)
    return owned


def test_lost_leases_that_are_never_released_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, passed = clock.now(), 0.0
    monkeypatch.setattr(clock, "now", lambda: begun + passed)
    keeper = SimpleNamespace(link=None, waits=SimpleNamespace(send_under=lambda _: None))
    leases = Leases(cast(Keeper, keeper))

    leases.all["revoked"] = _held("revoked")
    leases.lose("revoked", Loss(LostReason.REVOKED))
    leases.all["expired"] = _held("expired")
    passed = TTL
    leases.watch_validity(clock.now())
    assert list(leases.lost) == ["revoked", "expired"], "the store may still have both"
    leases.all["last"] = _held("last")
    passed = 1.5 * TTL + 1
    leases.lose("last", Loss(LostReason.MAX_HOLD))
    assert list(leases.lost) == ["last"]


def test_a_suspend_counts_though_the_monotonic_clock_stood_still() -> None:
    larger = Larger(0, 100)
    assert larger.advance(1, 101) == 1
    assert larger.advance(1, 401) == 301


def test_a_wall_clock_set_back_does_not_stop_it() -> None:
    larger = Larger(0, 0)
    assert larger.advance(1, 3_601) == 3_601
    assert larger.advance(2, 2) == 3_602
    assert larger.advance(3, 3) == 3_603


def test_the_clock_is_that_of_the_machine_with_its_suspends() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= clock.now() <= time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize("time_in_seconds", [0.0, 0.1, 0.3, 1.0, 2.9999999999, 3600.0])
def test_times_survive_the_way(time_in_seconds: float) -> None:
    sent = reading.duration(time_in_seconds)
    assert abs(reading.seconds(sent) - time_in_seconds) < 1e-8 and 0 <= sent.nanos < 10**9


def test_every_reason_has_its_class() -> None:
    found = {}
    for name in pb.ErrorReason.keys():  # noqa: SIM118
        said = hold.Refused(reason=name, message="why", retry_after=Duration(seconds=2))
        found[name.replace("ERROR_REASON_", "")] = type(reading.refused(said))
    unknown = {name for name, kind in found.items() if kind is errors.Other}
    assert unknown == {
        "UNSPECIFIED", "STALE_TOKEN", "NOT_HOLDER", "REQUEST_ID_REUSED", "CANCELLED", "CALL_ID_REUSED",
    }  # fmt: skip
    assert found["LOCK_HELD"] is errors.Held and found["STALE_ATTACH"] is errors.LeaseLost
    later = reading.refused(hold.Refused(reason=pb.ERROR_REASON_STORE_FULL, retry_after=Duration(seconds=2)))
    assert later.retry_after == 2 and later.holders == ()


def test_a_message_of_a_newer_broker_is_other() -> None:
    said = hold.Refused.FromString(hold.Refused(call_id=1, code=9).SerializeToString() + b"\x10\xe7\x07")
    assert isinstance(reading.refused(said), errors.Other)


class _Status(grpc.RpcError):
    def __init__(self, details: list[AnyProto]) -> None:
        status = status_pb2.Status(code=10, details=details)
        self._metadata = (("x", "y"), ("grpc-status-details-bin", status.SerializeToString()))

    def code(self) -> grpc.StatusCode:
        """As of a call."""
        return grpc.StatusCode.ABORTED

    def details(self) -> str:
        """As of a call."""
        return "held"

    def trailing_metadata(self) -> Any:
        """As of a call."""
        return self._metadata


def test_the_status_of_a_unary_call_says_the_same_as_a_stream() -> None:
    packed = [AnyProto(), AnyProto(), AnyProto()]
    packed[0].Pack(error_details_pb2.ErrorInfo(reason="LOCK_HELD", domain="leasehold.dev"))
    packed[1].Pack(error_details_pb2.RetryInfo(retry_delay=Duration(seconds=3)))
    contention = pb.Contention(holders=[pb.Holder(owner=pb.Owner(id="me"))], queue_length=4)
    packed[2].Pack(contention)
    error = reading.refused(reading.status(_Status(packed)))
    assert isinstance(error, errors.Held)
    assert (error.retry_after, error.queue_length, error.holders[0].owner) == (3, 4, "me")


def test_a_job_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker("test", lambda _: None, lambda: True)
    done = threading.Event()
    worker.post(lambda: 1 / 0)
    worker.post(done.set)
    assert done.wait(5) and "ZeroDivisionError" in caplog.text
    worker.post(worker.stop)


def test_a_worker_that_has_ended_does_what_comes_late() -> None:
    worker = Worker("test", lambda _: None, lambda: True)
    ended = threading.Event()
    worker.post(worker.stop)
    while worker.is_started and not ended.is_set():
        worker.post(ended.set)
    assert ended.wait(5)


def test_a_worker_looks_at_the_time_while_it_is_busy() -> None:
    looks: list[float] = []
    worker = Worker("test", looks.append, lambda: False)
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        worker.post(len, ())
        time.sleep(0.001)
    worker.post(worker.stop)
    gc.collect()
    assert len(looks) >= 5
