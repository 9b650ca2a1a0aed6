//! Checks that the files that documents link to exist, and that a document shows each image.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use leasehold_tests::repository::{import_graph::read_file, paths::repository_root};

use crate::source_files::{files, shown};

#[test]
fn linked_files_exist_and_images_are_shown() {
    let root = repository_root();
    let mut linked = BTreeSet::new();
    let mut missing = Vec::new();
    for document in files(root, &["md"]) {
        let folder = document.parent().expect("a file in a folder");
        for target in targets(&read_file(&document)) {
            match fs::canonicalize(folder.join(&target)) {
                Ok(file) => drop(linked.insert(file)),
                Err(_) => missing.push(format!("{} links to {target}", shown(root, &document))),
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    let images = fs::read_dir(root.join("docs/images")).expect("a readable folder");
    let unused: Vec<_> = images
        .map(|image| image.expect("a readable entry").path())
        .filter(|image| !linked.contains(&canonical(image)))
        .collect();
    assert!(unused.is_empty(), "no document shows {unused:?}");
}

/// Returns the relative paths that a document links to, without anchors.
fn targets(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| Some(rest.split_once(')')?.0));
    let paths = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    let paths = paths.map(|target| target.split('#').next().unwrap_or(target).to_owned());
    paths.collect()
}

fn canonical(file: &Path) -> PathBuf {
    fs::canonicalize(file).expect("a file that was listed")
}
