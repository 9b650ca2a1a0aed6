//! Detection of files that were replaced or written, by modification time and length.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Modification times and lengths of files; `None` for a file that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileFingerprints(Vec<(PathBuf, Option<(SystemTime, u64)>)>);

impl FileFingerprints {
    /// Reads the current state of the files.
    pub(crate) fn read<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let fingerprints = paths.into_iter().map(|path| {
            let metadata = fs::metadata(path).ok();
            let fingerprint =
                metadata.and_then(|metadata| Some((metadata.modified().ok()?, metadata.len())));
            (path.to_owned(), fingerprint)
        });
        Self(fingerprints.collect())
    }

    /// Reads the state again, stores it, and returns true if it differs from the previous state.
    pub(crate) fn has_changed(&mut self) -> bool {
        let current = Self::read(self.0.iter().map(|(path, _)| path.as_path()));
        let has_changed = *self != current;
        *self = current;
        has_changed
    }
}
