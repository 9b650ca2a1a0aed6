//! Checks that few tests need the whole machine, and that each of them states what it measures.

use std::path::{Path, PathBuf};

use leasehold_tests::repository::{import_graph::read_file, paths::repository_root};

/// Maximum number of tests that run alone. They run one after the other at the end of a run, while
/// everything else waits.
const ALONE_MAX: usize = 25;
const REASON: &str = "/// Runs alone: ";

#[test]
fn tests_that_run_alone_are_few_and_say_what_they_measure() {
    let (mut alone, mut silent) = (0, Vec::new());
    for file in files(&repository_root().join("tests/tests"), "alone") {
        let text = read_file(&file);
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            if !line.starts_with("#[tokio::test") && *line != "#[test]" {
                continue;
            }
            alone += 1;
            let comments = lines[..at].iter().rev();
            let mut comments = comments.take_while(|line| line.starts_with("///"));
            if !comments.any(|line| line.starts_with(REASON)) {
                silent.push(format!("{}:{}", file.display(), at + 1));
            }
        }
    }
    assert!(
        silent.is_empty(),
        "say `{REASON}...`: {}",
        silent.join(", ")
    );
    assert!((1..=ALONE_MAX).contains(&alone), "{alone} tests run alone");
}

/// Returns the files of each program's folder of this name.
fn files(tests: &Path, name: &str) -> Vec<PathBuf> {
    let entries = |folder: &Path| {
        let entries = folder.read_dir().expect("a readable folder");
        entries.map(|entry| entry.expect("a readable entry").path())
    };
    let folders = entries(tests).map(|program| program.join(name));
    folders
        .filter(|folder| folder.is_dir())
        .flat_map(|folder| entries(&folder))
        .collect()
}
