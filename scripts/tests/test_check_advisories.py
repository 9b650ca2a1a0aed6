"""Tests of scripts/check_advisories.sh, which calls cargo-deny offline with the given database."""

import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "check_advisories.sh"
# A program in place of cargo-deny, which prints its arguments and the content of the database that cargo-deny opens.
FAKE = """#!/usr/bin/env bash
echo "called with: $*"
ls "$ADVISORY_DATABASES/advisory-db-3157b0e258782691/crates"
exit 7
"""


class CheckAdvisories(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.cargo_deny = self.folder / "cargo-deny"
        self.cargo_deny.write_text(FAKE)
        self.cargo_deny.chmod(0o755)

    def check(self, database: Path) -> subprocess.CompletedProcess:
        return subprocess.run([SCRIPT, self.cargo_deny, database], capture_output=True, text=True, check=False)

    def test_a_clone_is_used_offline(self) -> None:
        database = self.folder / "db"
        (database / "crates/rsa").mkdir(parents=True)
        (database / "crates/rsa/a.md").touch()
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        date = "2026-02-03T04:05:06Z"
        for step in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "all"]):
            environment = {"PATH": "/usr/bin:/bin", "GIT_COMMITTER_DATE": date, "GIT_CONFIG_GLOBAL": "/dev/null"}
            subprocess.run(["git", *step], cwd=database, env=environment, check=True)
        done = self.check(database)
        lines = done.stdout.splitlines()
        called = "called with: --locked --workspace --offline check advisories"
        self.assertEqual(lines, ["Advisories until 2026-02-03:", called, "rsa"], done.stderr)
        self.assertEqual(done.returncode, 7, "cargo-deny's exit code")

    def test_another_folder_is_refused(self) -> None:
        done = self.check(self.folder)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("no clone of the RustSec advisory database", done.stderr)


if __name__ == "__main__":
    unittest.main()
