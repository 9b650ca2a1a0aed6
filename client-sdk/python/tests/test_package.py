"""What is shipped: generated stubs, both kinds of package, and the shape of the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

_HOME = Path(__file__).resolve().parents[1]
_SOURCE = _HOME / "src" / "leasehold"
_LINES_MAX = 400
#: In halves, so that this list does not find itself.
_UNUSED = [a + b for a, b in (("ses", "sion"), ("man", "ager"), ("hel", "per"), ("ut", "il"))]


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([str(_HOME / "generate.sh"), str(tmp_path)], check=True, env=environment)
    made = {one.name: one.read_text() for one in (tmp_path / "leasehold" / "v1").iterdir()}
    kept = {one.name: one.read_text() for one in (_SOURCE / "v1").iterdir() if one.is_file()}
    assert made == kept and len(made) == 13


def test_both_packages_are_built_and_hold_everything(tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(_HOME, home, ignore=shutil.ignore_patterns("__pycache__", ".*", "dist"))
    out = tmp_path / "dist"
    build = [sys.executable, "-W", "ignore", "-m", "build", "--no-isolation", "--outdir", str(out), str(home)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    for part in ("py.typed", "aio/__init__.py", "testing/__init__.py", "v1/types_pb2.py", "v1/types_pb2.pyi"):
        assert f"leasehold/{part}" in names
    assert not any("tests" in name for name in names)
    (entry_points,) = (tmp_path / "installed").glob("*.dist-info/entry_points.txt")
    assert "[pytest11]\nleasehold = leasehold.pytest_plugin" in entry_points.read_text()
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "generate.sh", "src/leasehold/py.typed"} <= packed
    # From the wheel, not from the sources.
    code = "import leasehold, leasehold.aio, leasehold.testing; print(leasehold.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    shown = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    assert shown.stdout.startswith(str(tmp_path))


def test_files_are_short_and_say_what_they_are() -> None:
    wrong = []
    own = [one for one in _HOME.rglob("*.py") if "v1" not in one.parts and not any(p[0] == "." for p in one.parts)]
    for file in own:
        text = file.read_text()
        if len(text.splitlines()) > _LINES_MAX or not text.startswith('"""'):
            wrong.append(str(file))
        wrong += [f"{file}: {word}" for word in _UNUSED if re.search(rf"\b{word}s?\b", text, re.IGNORECASE)]
    assert not wrong and len(own) > 40
