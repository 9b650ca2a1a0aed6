//! Metrics that `docs/metrics.md` documents, and metric names in queries.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// A row of the documented table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentedMetric {
    /// Metric type, in the words of the Prometheus text format.
    pub kind: String,
    pub labels: BTreeSet<String>,
    pub unit: String,
    /// True if the row has a description.
    pub has_description: bool,
}

/// Returns the path of a file in the repository, given relative to its root.
#[must_use]
pub fn repository_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Returns the text of a file in the repository.
#[must_use]
pub fn read_repository_file(path: &str) -> String {
    fs::read_to_string(repository_path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the documented metrics by the names of their families.
#[must_use]
pub fn documented_metrics() -> BTreeMap<String, DocumentedMetric> {
    let page = read_repository_file("docs/metrics.md");
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
        let promised = DocumentedMetric {
            kind: kind.to_owned(),
            labels: labels.map(str::to_owned).collect(),
            unit: unit.to_owned(),
            has_description: meaning.len() > 10,
        };
        (name.to_owned(), promised)
    });
    let all: Vec<_> = rows.collect();
    let by_name: BTreeMap<_, _> = all.iter().cloned().collect();
    assert_eq!(all.len(), by_name.len(), "a metric stands there twice");
    by_name
}

/// Returns the metric names in a query: `up`, and words with a prefix of Leasehold, gRPC, process
/// or the Redis exporter.
#[must_use]
pub fn metric_names_in(query: &str) -> BTreeSet<String> {
    let words =
        query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '"' && c != '$');
    let begins = ["leasehold_", "grpc_server_", "process_", "redis_"];
    let is_name = |word: &&str| *word == "up" || begins.iter().any(|begin| word.starts_with(begin));
    words.filter(is_name).map(str::to_owned).collect()
}
