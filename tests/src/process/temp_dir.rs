//! A temporary directory for one process under test.

use std::path::{Path, PathBuf};

/// A directory that is removed with its contents when dropped.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    #[must_use]
    pub fn new(what: &str) -> Self {
        let name = format!("leasehold-{what}-{}", uuid::Uuid::new_v4());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("create a temporary directory");
        Self(path)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Removal is best effort. A leftover directory in the temporary folder affects no test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
