"""Tests of scripts/changed_crates.sh in a temporary repository."""

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "changed_crates.sh"


class ChangedCrates(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name in ("one", "two"):
            (self.root / name / "src").mkdir(parents=True)
            (self.root / name / "src/lib.rs").write_text("//! Nothing.\n")
            manifest = f'[package]\nname = "crate-{name}"\n\n[lib]\nname = "other"\n'
            (self.root / name / "Cargo.toml").write_text(manifest)
        (self.root / "Cargo.toml").write_text('[workspace]\nmembers = ["one", "two"]\n')
        (self.root / "scripts").mkdir()
        shutil.copy(SCRIPT, self.root / "scripts")
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit()

    def git(self, *arguments: str) -> None:
        """Runs git with the identity of a test user."""
        identity = ["-c", "user.name=Tests", "-c", "user.email=tests@example.com"]
        subprocess.run(["git", *identity, *arguments], cwd=self.root, check=True)

    def commit(self) -> None:
        """Commits all changes."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=all")

    def changed(self) -> list[str]:
        """Returns the output lines of the script."""
        command = [self.root / "scripts/changed_crates.sh"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    def test_nothing_has_changed(self) -> None:
        self.assertEqual(self.changed(), [])

    def test_edited_new_and_committed_files_count_once(self) -> None:
        self.git("checkout", "--quiet", "-b", "branch")
        (self.root / "one/src/lib.rs").write_text("//! Something.\n")
        self.commit()
        (self.root / "one/src/new.rs").write_text("//! New.\n")
        self.assertEqual(self.changed(), ["--package crate-one"])
        (self.root / "two/Cargo.toml").write_text('[package]\nname = "crate-two"\n')
        (self.root / "README.md").write_text("About both.\n")
        self.assertEqual(self.changed(), ["--package crate-one", "--package crate-two"])


if __name__ == "__main__":
    unittest.main()
