"""Fixtures with brokers and Redis, and support for coroutine functions as tests."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import pytest
from interfaces import BrokerFixture, FakeBrokerFixture, Interface, RealBrokerFixture
from processes import Broker, Redis
from proxy import Proxy

pytest_plugins = ["leasehold.pytest_plugin"]

# Programs that tests start import the client from here.
os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1] / "src")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine function as a test, in a new event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(_in_threads(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})))
    return True


async def _in_threads(test: Coroutine[Any, Any, None]) -> None:
    # Each waiting call of the interface for threads occupies a thread of the executor.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))
    await test


@pytest.fixture(params=list(Interface), ids=lambda value: value.value)
def interface(request: pytest.FixtureRequest) -> Interface:
    """Returns the interface under test."""
    value: Interface = request.param
    return value


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[Broker]:
    """Yields a broker on the memory store that no test stops. Tests use their own names as lock names."""
    broker = Broker()
    yield broker
    broker.kill()


@pytest.fixture(params=["real", "fake"])
def broker_fixture(request: pytest.FixtureRequest, interface: Interface) -> BrokerFixture:
    """Returns a fixture with a real or a fake broker, for the interface under test."""
    if request.param == "fake":
        return FakeBrokerFixture(interface)
    return RealBrokerFixture(request.getfixturevalue("shared_broker"), interface)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Returns the name of a lock that no other test uses."""
    return f"{request.node.name}"


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Yields a function that starts a broker, a Redis or a proxy, which ends with the test."""
    started: list[Any] = []

    def create(kind: type[Any], *args: Any) -> Any:
        resource = kind(*args)
        started.append(resource)
        return resource

    yield create
    for resource in reversed(started):
        if isinstance(resource, Proxy):
            resource.stop()
        else:
            resource.kill()


@pytest.fixture
def redis(start: Callable[..., Any]) -> Redis:
    """Returns a Redis for this test only."""
    server: Redis = start(Redis)
    return server


@pytest.fixture
def broker(start: Callable[..., Any]) -> Broker:
    """Returns a broker on the memory store for this test only."""
    process: Broker = start(Broker)
    return process


@pytest.fixture
def two_brokers(start: Callable[..., Any], redis: Redis) -> list[Broker]:
    """Returns two brokers that share a Redis."""
    return [start(Broker, redis.url), start(Broker, redis.url)]
