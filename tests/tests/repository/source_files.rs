//! Lists the source files of the project.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders of generated and installed files.
const GENERATED: [&str; 6] = ["build", "dist", "gen", "node_modules", "target", "v1"];

/// Returns the files below `root` with one of `endings`, without generated ones and those of tools.
pub(crate) fn files(root: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !GENERATED.contains(&name.as_str()) {
                found.extend(files(&path, endings));
            }
        } else if endings.contains(&name.rsplit('.').next().unwrap_or(&name)) {
            found.push(path);
        }
    }
    found
}

/// Returns the name of a file relative to `root`.
pub(crate) fn shown(root: &Path, file: &Path) -> String {
    let name = file.strip_prefix(root).expect("a file below the folder");
    name.to_string_lossy().into_owned()
}
