"""Tests of scripts/provide.sh with several setups that share a cache."""

import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

PROVIDE = Path(__file__).parents[1] / "provide.sh"
BASH = shutil.which("bash")
TIMEOUT_S = 20


class Provide(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = Path(folder.name) / "cache"

    def start(self, script: str) -> subprocess.Popen:
        setup = subprocess.Popen(
            [BASH, "-c", f"set -euo pipefail\nsource '{PROVIDE}'\n{script}\nprovide"],
            env=os.environ | {"LEASEHOLD_CACHE": str(self.cache)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.addCleanup(self.end, setup)
        return setup

    def end(self, setup: subprocess.Popen) -> None:
        """Kills a running setup with its children."""
        if setup.poll() is None:
            os.killpg(setup.pid, signal.SIGKILL)
            setup.communicate()

    def run_setup(self, script: str) -> tuple[int, str]:
        """Returns the exit code and the output."""
        setup = self.start(script)
        output = "".join(setup.communicate(timeout=TIMEOUT_S))
        return setup.returncode, output

    def test_a_step_of_two_setups_at_a_time_runs_once(self) -> None:
        # The first setup continues after the test has read that the second one waits.
        self.cache.mkdir()
        os.mkfifo(self.cache / "go")
        folder = """add_folder "$CACHE/tool" bin/tool 'echo ran; read -r line <"$CACHE/go"; mkdir "$NEW/bin"; touch "$NEW/bin/tool"'"""
        first = self.start(folder)
        self.assertEqual(first.stdout.readline(), "ran\n")
        self.assertFalse((self.cache / "tool").exists())
        second = self.start(folder)
        self.assertIn("Waiting for another setup", second.stderr.readline())
        (self.cache / "go").write_text("on\n")
        self.assertEqual((first.communicate(timeout=TIMEOUT_S)[0], first.returncode), ("", 0))
        self.assertEqual((second.communicate(timeout=TIMEOUT_S)[0], second.returncode), ("", 0))
        self.assertTrue((self.cache / "tool/bin/tool").exists())

    def test_a_failed_step_leaves_no_folder_and_is_repeated(self) -> None:
        code, output = self.run_setup("""add_folder "$CACHE/tool" file 'touch "$NEW/file"; false; echo later'""")
        self.assertEqual(code, 1, output)
        self.assertIn("tool/file could not be made", output)
        self.assertNotIn("later", output)
        self.assertFalse((self.cache / "tool").exists())
        code, output = self.run_setup("""add_folder "$CACHE/tool" file 'touch "$NEW/file"'""")
        self.assertEqual((code, output), (0, ""))
        self.assertTrue((self.cache / "tool/file").exists())

    def test_a_cache_of_another_user_is_refused_before_any_step(self) -> None:
        if os.geteuid() == 0:
            self.cache.mkdir()
            os.chown(self.cache, 12345, -1)
        else:
            self.cache = Path("/usr")
        code, output = self.run_setup("""add_step "$CACHE/file" 'echo ran'""")
        self.assertEqual((code, "ran" in output), (2, False), output)
        self.assertIn(f"{self.cache} belongs to", output)

    def test_nothing_missing_needs_no_cache(self) -> None:
        self.assertEqual(self.run_setup("add_step /dev/null 'echo ran'"), (0, ""))
        self.assertFalse(self.cache.exists())

    def test_a_step_that_leaves_a_process_gives_up_the_lock(self) -> None:
        script = """add_step "$CACHE/{0}" 'sleep 600 >/dev/null 2>&1 & echo $!; touch "$CACHE/{0}"'"""
        code, process = self.run_setup(script.format("first"))
        self.addCleanup(subprocess.run, ["kill", process.strip()], check=True)
        self.assertEqual(code, 0, process)
        self.assertEqual(self.run_setup("add_step \"$CACHE/second\" 'touch \"$CACHE/second\"'"), (0, ""))


if __name__ == "__main__":
    unittest.main()
