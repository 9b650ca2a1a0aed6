"""Set limits of semaphores, with a real and a fake broker, for threads and for asyncio."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from interfaces import TIMEOUT, BrokerFixture, Client, Interface, create_client
from processes import Broker, free_port

import leasehold
from leasehold import PermitUsage, Target
from leasehold.v1 import lock_service_pb2 as pb


async def permit_usage(client: Client, lock: Any) -> PermitUsage | None:
    """Reads the limit and the used permits of a lock, which must have a state."""
    state = await client.get(lock)
    assert state is not None, "the lock has no state"
    return state.permit_usage


async def test_a_set_limit_overrides_the_limits_of_callers(broker_fixture: BrokerFixture, name: str) -> None:
    client = broker_fixture.client("one")
    assert await client.set_limit(name, 2) is None
    usage = await permit_usage(client, name)
    assert usage == PermitUsage(limit=2, used=0, is_limit_set=True) and usage.free == 2
    first, second = await client.acquire(name, permits=1, limit=1), await client.acquire(name, permits=1, limit=9)
    assert await client.try_lock(name, permits=1, limit=9) is None
    assert await permit_usage(client, name) == PermitUsage(2, 2, True)
    with pytest.raises(leasehold.LimitMismatch):
        await client.acquire(name, permits=3, limit=9)
    await first.release()
    await second.release()
    for shared in (False, True):
        with pytest.raises(leasehold.LimitMismatch):
            await client.try_lock(name, shared=shared)
    assert await permit_usage(client, name) == PermitUsage(2, 0, True), "an idle lock has lost its set limit"
    assert await client.set_limit(name, None) == 2
    assert await client.get(name) is None
    await (await client.acquire(name)).release()


async def test_a_lower_limit_revokes_nothing_and_a_higher_one_grants_at_once(
    broker_fixture: BrokerFixture, name: str
) -> None:
    client = broker_fixture.client("one")
    leases = [await client.acquire(name, permits=2, limit=4) for _ in range(2)]
    assert await permit_usage(client, name) == PermitUsage(4, 4, False)
    assert await client.set_limit(name, 1) == 4
    usage = await permit_usage(client, name)
    assert usage == PermitUsage(1, 4, True) and usage.free == 0
    assert all(lease.is_valid() for lease in leases)
    await (await client.acquire(name, under=leases[0], permits=2, limit=4)).release()
    await leases[0].release()
    assert await client.try_lock(name, permits=1) is None, "three permits of one are used"
    with pytest.raises(leasehold.LimitMismatch):
        await client.acquire(name, permits=2, limit=3)
    pending = asyncio.ensure_future(client.acquire(name, permits=1, limit=2))
    await broker_fixture.wait_for_waiters(name, 1)
    assert await client.set_limit(name, 3) == 1
    lease = await asyncio.wait_for(pending, TIMEOUT)
    await lease.release()
    await leases[1].release()
    assert await client.set_limit(name, None) == 3


async def test_a_waiter_that_needs_more_than_a_lower_limit_fails(broker_fixture: BrokerFixture, name: str) -> None:
    client = broker_fixture.client("one")
    lease = await client.acquire(name, permits=1, limit=3)
    too_large = asyncio.ensure_future(client.acquire(name, permits=3, limit=3))
    await broker_fixture.wait_for_waiters(name, 1)
    next_waiter = asyncio.ensure_future(client.acquire(name, permits=1, limit=3))
    await broker_fixture.wait_for_waiters(name, 2)
    assert await client.set_limit(name, 2) == 3
    with pytest.raises(leasehold.LimitMismatch):
        await asyncio.wait_for(too_large, TIMEOUT)
    await (await asyncio.wait_for(next_waiter, TIMEOUT)).release()
    await lease.release()
    assert await client.set_limit(name, None) == 2


async def test_a_removed_limit_stays_in_use_until_the_lock_is_idle(broker_fixture: BrokerFixture, name: str) -> None:
    client = broker_fixture.client("one")
    await client.set_limit(name, 2)
    lease = await client.acquire(name, permits=1, limit=9)
    assert await client.set_limit(name, None) == 2
    assert await permit_usage(client, name) == PermitUsage(2, 1, False)
    with pytest.raises(leasehold.LimitMismatch):
        await client.acquire(name, permits=1, limit=9)
    assert await client.set_limit(name, None) is None
    await lease.release()
    await (await client.acquire(name, permits=9, limit=9)).release()


@pytest.mark.parametrize("shared", [False, True])
async def test_the_limit_of_a_lock_in_use_in_another_mode_is_rejected(
    broker_fixture: BrokerFixture, name: str, shared: bool
) -> None:
    client = broker_fixture.client("one")
    elsewhere = Target(name, namespace="elsewhere")
    lease = await client.acquire(name, shared=shared)
    with pytest.raises(leasehold.LimitMismatch):
        await client.set_limit(name, 2)
    assert await permit_usage(client, name) is None
    assert await client.set_limit(elsewhere, 2) is None
    assert await permit_usage(client, elsewhere) == PermitUsage(2, 0, True)
    await lease.release()
    assert await client.get(name) is None
    assert await client.set_limit(elsewhere, None) == 2


@pytest.mark.parametrize("limit", [-1, 0, 1_001, 2**40])
async def test_a_limit_outside_the_range_is_invalid(
    shared_broker: Broker, interface: Interface, name: str, limit: int
) -> None:
    client = create_client(interface, shared_broker.url)
    with pytest.raises(leasehold.Invalid):
        await client.set_limit(name, limit)
    assert await client.get(name) is None


async def test_arguments_of_a_wrong_type_fail_at_once(interface: Interface) -> None:
    client = create_client(interface, f"http://127.0.0.1:{free_port()}")
    wrong: Any = "2"
    for call in (client.set_limit("a", wrong), client.set_limit("\ud800", 2), client.get("\ud800")):
        with pytest.raises((TypeError, ValueError)):
            await asyncio.wait_for(call, TIMEOUT)
    await client.shutdown()


async def test_without_a_broker_or_its_response_a_call_is_unavailable(
    start: Callable[..., Any], interface: Interface
) -> None:
    client = create_client(interface, f"http://127.0.0.1:{free_port()}")
    with pytest.raises(leasehold.Unavailable, match="no broker can be reached"):
        await client.set_limit("a", 2)
    await client.shutdown()
    broker: Broker = start(Broker)
    client = create_client(interface, broker.url)
    await client.connect()
    broker.process.pause()
    results = await asyncio.gather(client.set_limit("a", 2), client.get("a"), return_exceptions=True)
    assert [type(result) for result in results] == [leasehold.Unavailable, leasehold.Unavailable]
    broker.process.resume()


class DenyingBroker(grpc.GenericRpcHandler):
    """A broker that accepts streams, records the changes of limits, and denies them."""

    def __init__(self) -> None:
        self.requests: list[pb.SetLockLimitRequest] = []

    def service(self, handler_call_details: Any) -> Any:
        """Handles a call."""

        def listen(requests: Any, context: grpc.ServicerContext) -> Any:
            context.send_initial_metadata(())
            yield from (message for message in requests if message is None)

        def deny(request: pb.SetLockLimitRequest, context: grpc.ServicerContext) -> Any:
            self.requests.append(request)
            status = status_pb2.Status(code=grpc.StatusCode.PERMISSION_DENIED.value[0])
            reason = error_details_pb2.ErrorInfo(reason="PERMISSION_DENIED", domain="leasehold.dev")
            status.details.add().Pack(reason)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "set_limit is not allowed")

        if handler_call_details.method == "/leasehold.v1.LockService/SetLockLimit":
            return grpc.unary_unary_rpc_method_handler(deny, pb.SetLockLimitRequest.FromString)
        return grpc.stream_stream_rpc_method_handler(listen)


async def test_a_denied_change_of_a_limit_raises_permission_denied(interface: Interface) -> None:
    handler = DenyingBroker()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = create_client(interface, f"http://127.0.0.1:{port}")
    with pytest.raises(leasehold.PermissionDenied, match="set_limit is not allowed"):
        await client.set_limit(Target("a", "b", permits=3, limit=4), 5)
    with pytest.raises(leasehold.PermissionDenied):
        await client.set_limit("a", None)
    assert [(str(request.lock), request.limit) for request in handler.requests] == [
        ('namespace: "b"\nname: "a"\n', 5),
        ('namespace: "default"\nname: "a"\n', 0),
    ]
    await client.shutdown()
    server.stop(None).wait()
