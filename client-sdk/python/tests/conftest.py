"""Brokers for the tests, and coroutines as tests."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import pytest
from flavours import FakeSite, Flavour, RealSite, Site
from processes import Broker, Redis
from proxy import Proxy

pytest_plugins = ["leasehold.pytest_plugin"]

# For the programs that tests run.
os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1] / "src")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(_in_threads(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})))
    return True


async def _in_threads(test: Coroutine[Any, Any, None]) -> None:
    # A call of the interface for threads keeps its thread as long as it waits.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))
    await test


@pytest.fixture(params=list(Flavour), ids=lambda one: one.value)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Which interface."""
    one: Flavour = request.param
    return one


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[Broker]:
    """A broker on the memory store that nobody harms. Locks have the name of their test."""
    broker = Broker()
    yield broker
    broker.kill()


@pytest.fixture(params=["real", "fake"])
def site(request: pytest.FixtureRequest, flavour: Flavour) -> Site:
    """A real broker or the fake, by either interface."""
    if request.param == "fake":
        return FakeSite(flavour)
    return RealSite(request.getfixturevalue("shared_broker"), flavour)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A lock that no other test uses."""
    return f"{request.node.name}"


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Starts a broker, a Redis or a proxy that ends with the test."""
    started: list[Any] = []

    def begin(kind: type[Any], *args: Any) -> Any:
        one = kind(*args)
        started.append(one)
        return one

    yield begin
    for one in reversed(started):
        if isinstance(one, Proxy):
            one.stop()
        else:
            one.kill()


@pytest.fixture
def redis(start: Callable[..., Any]) -> Redis:
    """A Redis of its own."""
    one: Redis = start(Redis)
    return one


@pytest.fixture
def broker(start: Callable[..., Any]) -> Broker:
    """A broker of its own on the memory store."""
    one: Broker = start(Broker)
    return one


@pytest.fixture
def two_brokers(start: Callable[..., Any], redis: Redis) -> list[Broker]:
    """Two brokers that share a Redis."""
    return [start(Broker, redis.url), start(Broker, redis.url)]
