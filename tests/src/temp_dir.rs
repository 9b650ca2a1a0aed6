//! A directory of its own for each process under test.

use std::path::{Path, PathBuf};

/// Removed with everything in it when dropped.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Creates one.
    #[must_use]
    pub fn new(what: &str) -> Self {
        let name = format!("leasehold-{what}-{}", uuid::Uuid::new_v4());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("create a temporary directory");
        Self(path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Best effort: a directory left behind in /tmp spoils no test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
