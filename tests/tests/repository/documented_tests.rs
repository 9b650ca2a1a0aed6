//! Checks that the tests that the documentation names exist.

use std::{collections::BTreeSet, fs, path::Path};

use leasehold_tests::repository::{import_graph::read_file, paths::repository_root};

/// Folders between a program and its modules, named after the needs of the tests. The documentation
/// omits them.
const NEEDS: [&str; 4] = [".", "alone", "loads", "waits"];

#[test]
fn documented_tests_exist() {
    let tests = repository_root().join("tests/tests");
    let programs: BTreeSet<_> = names_in(&tests).into_iter().collect();
    let mut missing = Vec::new();
    let mut found = 0;
    for document in documents() {
        let text = read_file(&document);
        for name in text.split('`').skip(1).step_by(2) {
            let mut parts = name.split("::");
            let (Some(program), Some(module)) = (parts.next(), parts.next()) else {
                continue;
            };
            if !programs.contains(program) || !name.chars().all(is_of_name) {
                continue;
            }
            found += 1;
            let files = NEEDS.map(|need| tests.join(program).join(need).join(module));
            let file = files.into_iter().map(|file| file.with_extension("rs"));
            let text = file
                .filter(|file| file.is_file())
                .map(|file| read_file(&file))
                .next();
            // A macro generates the suite's tests from a list.
            let list = read_file(&repository_root().join("tests/src/suite.rs"));
            let has = |text: &str, part: &str| {
                text.contains(&format!("fn {part}(")) || (program == "suite" && list.contains(part))
            };
            if !text.is_some_and(|text| parts.all(|part| has(&text, part))) {
                missing.push(format!("{} names {name}", document.display()));
            }
        }
        for rest in text.split("tests/tests/").skip(1) {
            let end = rest.find(|c: char| !is_of_name(c) && !['/', '.'].contains(&c));
            let path = rest[..end.unwrap_or(rest.len())].trim_end_matches('.');
            found += 1;
            if !rest.starts_with('<')
                && !rest[path.len()..].starts_with('<')
                && !tests.join(path).exists()
            {
                missing.push(format!("{} names tests/tests/{path}", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(found > 80, "only {found} names of tests were found");
}

/// Returns the Markdown files of the project that name tests.
fn documents() -> Vec<std::path::PathBuf> {
    let root = repository_root();
    let folders = [
        "",
        "docs",
        "docs/decisions",
        "deploy/helm/leasehold",
        "tests/suite",
    ];
    let files = folders.iter().flat_map(|folder| {
        let entries = fs::read_dir(root.join(folder)).expect("a readable folder");
        entries.map(|entry| entry.expect("a readable entry").path())
    });
    files
        .filter(|file| file.extension().is_some_and(|ending| ending == "md"))
        .collect()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a readable folder");
    let names = entries.map(|entry| entry.expect("a readable entry").file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}
