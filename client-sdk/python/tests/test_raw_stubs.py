"""The program in docs/raw-stubs.md, with stubs that are generated as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from processes import Broker, Process

import leasehold
from leasehold.v1 import lock_service_pb2 as pb
from leasehold.v1 import types_pb2 as types

_ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of the page, beside its stubs."""
    home = tmp_path_factory.mktemp("raw")
    text = (_ROOT / "docs" / "raw-stubs.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (home / "job.py").write_text(code)
    (line,) = re.findall(r"^python -m (grpc_tools\.protoc .*)$", text, re.MULTILINE)
    words = line.replace("_out=.", f"_out={home}").split()
    protos = sorted(str(one.relative_to(_ROOT / "proto")) for one in (_ROOT / "proto").glob(words[-1]))
    command = [sys.executable, "-W", "ignore", "-m", *words[:-1], *protos]
    subprocess.run(command, check=True, cwd=_ROOT / "proto")
    return home / "job.py"


def run(start: Callable[..., Any], job: Path, addr: str) -> Process:
    """Starts the program, without the package of this project."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    process: Process = start(Process, [sys.executable, str(job), addr], environment)
    return process


def test_the_program_takes_renews_and_gives_back(start: Callable[..., Any], broker: Broker, job: Path) -> None:
    process = run(start, job, broker.addr)
    token = int(process.line(r"step 0 with fencing token (\d+)")[1])
    with leasehold.Client(broker.url) as client:
        assert client.try_lock("invoices/4711") is None
        waits = client.lock("invoices/4711", wait=20)
        process.line(r"step 2 with fencing token")
        with waits as lease:
            assert lease.fencing_token > token
    process.line("^done")
    assert process.ended() == 0


def test_the_program_stops_when_it_has_lost_its_lock(start: Callable[..., Any], broker: Broker, job: Path) -> None:
    process = run(start, job, broker.addr)
    process.line(r"step 0")
    broker.process.pause()
    with pytest.raises(AssertionError, match="ended with 1"):
        process.line(r"step 2")
    broker.process.resume()
    assert process.ended() == 1


def test_a_refusal_says_its_reason(shared_broker: Broker, name: str) -> None:
    with leasehold.Client(shared_broker.url, owner="holder") as client, client.lock(name):
        with grpc.insecure_channel(shared_broker.addr) as channel, pytest.raises(grpc.RpcError) as caught:
            acquire = channel.unary_unary(
                "/leasehold.v1.LockService/Acquire",
                request_serializer=pb.AcquireRequest.SerializeToString,
                response_deserializer=pb.AcquireResponse.FromString,
            )
            acquire(pb.AcquireRequest(target=types.LockTarget(name=name), owner=types.Owner(id="me")), timeout=5)
        assert caught.value.code() is grpc.StatusCode.ABORTED
        trailers: Any = caught.value.trailing_metadata()
        packed = dict(trailers)["grpc-status-details-bin"]
        info, contention = error_details_pb2.ErrorInfo(), types.Contention()
        for detail in status_pb2.Status.FromString(packed).details:
            detail.Unpack(info)
            detail.Unpack(contention)
        assert info.reason == "LOCK_HELD" and contention.holders[0].owner.id == "holder"
