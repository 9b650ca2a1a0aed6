//! The common suite, run with the Rust client.

use std::{fs, path::Path};

leasehold_tests::play!(Rust beside Rust);

/// A scenario that is missing from the list never runs, unless it has its own file. A scenario for
/// two languages must also be in the list of pairs.
#[test]
fn every_scenario_is_in_its_lists() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = tests.join("src");
    let read = |path: &Path| fs::read_to_string(path).expect("a readable file");
    let lists = read(&source.join("suite.rs"));
    let (all, of_two) = lists.split_once("play_together").expect("two lists");
    let apart = read(&tests.join("tests/suite/loads/doors_tokens.rs"));
    let (mut scenarios, mut missing) = (0, Vec::new());
    for file in fs::read_dir(source.join("suite")).expect("a directory") {
        let text = read(&file.expect("an entry").path());
        for function in text.split("\npub async fn ").skip(1) {
            let Some((name, code)) = function.split_once("(cast: Cast) {") else {
                continue;
            };
            scenarios += 1;
            let is_in = |list: &str| list.lines().any(|line| line.trim() == name);
            let is_played = is_in(all) || apart.contains(&format!("{name}(cast)"));
            if !is_played || is_in(of_two) != code.contains("fixture.start_other_probe()") {
                missing.push(name.to_owned());
            }
        }
    }
    assert!(missing.is_empty() && scenarios > 25, "{missing:?}");
}
