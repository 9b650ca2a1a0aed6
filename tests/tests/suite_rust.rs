//! The suite of all languages, played by the Rust client.

use std::{fs, path::Path};

leasehold_tests::play!(Rust beside Rust);

/// A scenario that is not in the list would be played by nobody.
#[test]
fn every_scenario_is_in_the_list() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read = |path: &Path| fs::read_to_string(path).expect("a readable file");
    let list = read(&source.join("suite.rs"));
    let files = fs::read_dir(source.join("suite")).expect("a directory");
    let mut scenarios = Vec::new();
    for file in files {
        let text = read(&file.expect("an entry").path());
        let functions = text
            .lines()
            .filter_map(|line| line.strip_prefix("pub async fn "));
        let names = functions.filter_map(|line| line.strip_suffix("(cast: Cast) {"));
        scenarios.extend(names.map(str::to_owned));
    }
    let is_missing = |name: &&String| !list.lines().any(|line| line.trim() == **name);
    let missing: Vec<_> = scenarios.iter().filter(is_missing).collect();
    assert!(missing.is_empty() && scenarios.len() > 25, "{missing:?}");
}
