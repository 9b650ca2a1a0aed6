"""Contents of the package: generated stubs, wheel and source distribution, and the shape of the code."""

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
#: Words that the code must not contain. They are split, so that this file does not contain them itself.
_FORBIDDEN_WORDS = [a + b for a, b in (("man", "ager"), ("hel", "per"), ("ut", "il"))]


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([str(_HOME / "generate.sh"), str(tmp_path)], check=True, env=environment)
    generated = {file.name: file.read_text() for file in (tmp_path / "leasehold" / "v1").iterdir()}
    committed = {file.name: file.read_text() for file in (_SOURCE / "v1").iterdir() if file.is_file()}
    assert generated == committed and len(generated) == 13


def test_wheel_and_source_distribution_are_complete(tmp_path: Path) -> None:
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
    # Imports the package from the wheel, not from the sources.
    code = "import leasehold, leasehold.aio, leasehold.testing; print(leasehold.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    imported = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    assert imported.stdout.startswith(str(tmp_path))


def test_files_are_short_and_documented() -> None:
    wrong = []
    files = [
        path for path in _HOME.rglob("*.py") if "v1" not in path.parts and not any(p[0] == "." for p in path.parts)
    ]
    for file in files:
        text = file.read_text()
        if len(text.splitlines()) > _LINES_MAX or not text.startswith('"""'):
            wrong.append(str(file))
        wrong += [f"{file}: {word}" for word in _FORBIDDEN_WORDS if re.search(rf"\b{word}s?\b", text, re.IGNORECASE)]
    assert not wrong and len(files) > 40
