//! Whether files were replaced or written since they were read.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Files as they were when they were looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files(Vec<(PathBuf, Option<(SystemTime, u64)>)>);

impl Files {
    /// As they are now.
    pub(crate) fn look<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let looked = paths.into_iter().map(|path| {
            let about = fs::metadata(path).ok();
            let stamp = about.and_then(|about| Some((about.modified().ok()?, about.len())));
            (path.to_owned(), stamp)
        });
        Self(looked.collect())
    }

    /// Looks again; whether anything is another file now.
    pub(crate) fn have_changed(&mut self) -> bool {
        let now = Self::look(self.0.iter().map(|(path, _)| path.as_path()));
        let have_changed = *self != now;
        *self = now;
        have_changed
    }
}
