"""Tests of scripts/preflight.sh, whose checks pass, or report the problem and its fix."""

import os
import shutil
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "preflight.sh"
BASH = shutil.which("bash")
CLOSED_PROXY = {name: "http://127.0.0.1:1" for name in ("http_proxy", "https_proxy", "HTTPS_PROXY")}


def check(*arguments: str, **environment: str) -> tuple[int, list[str]]:
    """Returns the exit code and the lines of stderr."""
    ended = subprocess.run(
        [BASH, SCRIPT, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == "", ended.stdout
    return ended.returncode, ended.stderr.splitlines()


class Preflight(unittest.TestCase):
    def passes(self, *arguments: str, **environment: str) -> None:
        self.assertEqual(check(*arguments, **environment), (0, []))

    def refuses(self, sentence: str, fix: str, *arguments: str, **environment: str) -> None:
        code, lines = check(*arguments, **environment)
        self.assertEqual((code, len(lines)), (2, 2), lines)
        self.assertRegex(lines[0], sentence)
        self.assertRegex(lines[1], fix)

    def test_tool(self) -> None:
        self.passes("tool", "bash")
        self.refuses("^cargo is not installed; ", "sh.rustup.rs", "tool", "cargo", PATH="/nowhere")
        self.refuses("^cc is not installed; ", "install.* gcc$", "tool", "cc", "gcc", PATH="/nowhere")

    def test_disk(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.passes("disk", folder, "0")
            missing = f"{folder}/a/b"
            sentence = f"^{missing} needs 9999999 GB of free disk space, but has [0-9]+ GB; "
            self.refuses(sentence, "^  export MOVED=", "disk", missing, "9999999", "MOVED")
            self.refuses(sentence, f"^  du .*{folder}'", "disk", missing, "9999999")

    def test_port(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            self.refuses(f"^port {port} is in use", "kill|lsof", "port", port)
        self.passes("port", port)

    def test_crates(self) -> None:
        # Downloads the crates, which are missing on a new machine.
        subprocess.run(["cargo", "fetch", "--locked", "--quiet"], cwd=SCRIPT.parent, check=True)
        self.passes("crates", "leasehold-server", **CLOSED_PROXY)
        with tempfile.TemporaryDirectory() as empty:
            where = CLOSED_PROXY | {"CARGO_HOME": empty}
            self.refuses("^crates are missing", "cargo fetch", "crates", "leasehold-server", **where)

    def test_cache_owner(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.passes("cache-owner", folder)
            self.passes("cache-owner", f"{folder}/missing")
            is_root = os.geteuid() == 0
            if is_root:
                os.chown(folder, 65534, 65534)
            foreign = folder if is_root else "/"
            self.refuses(f"^{foreign} belongs to .*, not to ", f"chown.* '{foreign}'", "cache-owner", foreign)


if __name__ == "__main__":
    unittest.main()
