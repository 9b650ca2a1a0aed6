"""Closed locks in queue positions and lock states, with a real broker."""

from __future__ import annotations

import asyncio
import queue

import grpc
from google.protobuf.duration_pb2 import Duration
from interfaces import TIMEOUT, Interface, create_client
from processes import Broker

from leasehold import Closure, ClosureCause, QueuePosition
from leasehold.v1 import admin_service_pb2 as admin
from leasehold.v1 import types_pb2 as types


def close_lock(broker: Broker, lock: str) -> None:
    """Closes a lock for a minute."""
    request = admin.CloseLockRequest(
        lock=types.LockRef(name=lock), reason="migration", duration=Duration(seconds=60), operator="ops"
    )
    with grpc.insecure_channel(broker.addr) as channel:
        close = channel.unary_unary(
            "/leasehold.v1.AdminService/CloseLock",
            request_serializer=admin.CloseLockRequest.SerializeToString,
            response_deserializer=admin.CloseLockResponse.FromString,
        )
        close(request, timeout=TIMEOUT)


def open_lock(broker: Broker, lock: str) -> None:
    """Opens a closed lock."""
    with grpc.insecure_channel(broker.addr) as channel:
        open_ = channel.unary_unary(
            "/leasehold.v1.AdminService/OpenLock",
            request_serializer=admin.OpenLockRequest.SerializeToString,
            response_deserializer=admin.OpenLockResponse.FromString,
        )
        open_(admin.OpenLockRequest(lock=types.LockRef(name=lock)), timeout=TIMEOUT)


def assert_closed(closure: Closure | None) -> None:
    """Checks that a closure is that of ``close_lock``."""
    assert closure is not None
    assert (closure.cause, closure.owner, closure.reason) == (ClosureCause.OPERATOR, "ops", "migration")
    assert closure.until is not None and 0 < closure.remaining <= 60


async def test_a_closure_is_in_the_lock_state_and_in_the_queue_position(
    shared_broker: Broker, interface: Interface, name: str
) -> None:
    client = create_client(interface, shared_broker.url)
    positions: queue.SimpleQueue[QueuePosition] = queue.SimpleQueue()
    close_lock(shared_broker, name)
    state = await client.get(name)
    assert state is not None and not state.holders and state.permit_usage is None
    assert_closed(state.closure)

    pending = asyncio.ensure_future(client.acquire(name, on_queue=positions.put))
    position = await asyncio.to_thread(positions.get, True, TIMEOUT)
    assert position.position == 1
    assert_closed(position.closure)

    open_lock(shared_broker, name)
    lease = await asyncio.wait_for(pending, TIMEOUT)
    state = await client.get(name)
    assert state is not None and state.closure is None
    positions = queue.SimpleQueue()
    pending = asyncio.ensure_future(client.acquire(name, on_queue=positions.put))
    position = await asyncio.to_thread(positions.get, True, TIMEOUT)
    assert position.closure is None
    await lease.release()
    await (await asyncio.wait_for(pending, TIMEOUT)).release()
