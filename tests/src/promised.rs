//! The metrics that docs/metrics.md promises, and names of metrics in queries.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// A line of the page's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promised {
    /// As types are called in the format.
    pub kind: String,
    /// Its labels.
    pub labels: BTreeSet<String>,
    /// As the page has it.
    pub unit: String,
    /// Whether the page says what it means.
    pub is_explained: bool,
}

/// A file of the project.
#[must_use]
pub fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The text of a file of the project.
#[must_use]
pub fn text(path: &str) -> String {
    fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What the page promises, by the names of the families.
#[must_use]
pub fn promised() -> BTreeMap<String, Promised> {
    let page = text("docs/metrics.md");
    let (_, table) = page.split_once("## All metrics").expect("the table");
    let (table, _) = table.split_once("\n## ").expect("its end");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, unit, meaning] = cells[..] else {
            panic!("five cells: {row}");
        };
        let name = name.trim_matches('`');
        let name = name.strip_suffix("_total").unwrap_or(name);
        let name = name.strip_suffix("_info").unwrap_or(name);
        let labels = labels.split(", ").filter(|label| !label.is_empty());
        let promised = Promised {
            kind: kind.to_owned(),
            labels: labels.map(str::to_owned).collect(),
            unit: unit.to_owned(),
            is_explained: meaning.len() > 10,
        };
        (name.to_owned(), promised)
    });
    let all: Vec<_> = rows.collect();
    let by_name: BTreeMap<_, _> = all.iter().cloned().collect();
    assert_eq!(all.len(), by_name.len(), "a metric stands there twice");
    by_name
}

/// The names of metrics in a query: what begins as ours do, as those of gRPC and of a process, as the
/// exporter's of Redis, and `up`.
#[must_use]
pub fn names_in(query: &str) -> BTreeSet<String> {
    let words =
        query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '"' && c != '$');
    let begins = ["leasehold_", "grpc_server_", "process_", "redis_"];
    let is_name = |word: &&str| *word == "up" || begins.iter().any(|begin| word.starts_with(begin));
    words.filter(is_name).map(str::to_owned).collect()
}
