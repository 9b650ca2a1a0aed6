//! The dashboard and the alerts: they use existing metrics, every alert has a runbook and tests,
//! and promtool accepts the rules.

use std::{collections::BTreeSet, process::Command};

use leasehold_tests::telemetry::documented_metrics::{
    documented_metrics, metric_names_in, read_repository_file, repository_path,
};
use serde_json::Value;

const RULES: &str = "deploy/prometheus/rules.yaml";
const TESTS: &str = "deploy/prometheus/rules.test.yaml";
const DASHBOARD: &str = "deploy/grafana/leasehold.json";
/// Metrics of Prometheus and of the Redis exporter.
const OTHERS: [&str; 2] = ["up", "redis_evicted_keys_total"];
const ROWS: [&str; 5] = [
    "Is it safe?",
    "Is it fast?",
    "Is it fair?",
    "Redis",
    "Replicas",
];

/// Returns true if the documentation lists a series of that name.
fn is_documented(series: &str) -> bool {
    let promised = documented_metrics();
    let is_of = |end: &str, kind: &str| {
        let family = series.strip_suffix(end);
        let family = family.and_then(|family| promised.get(family));
        family.is_some_and(|family| family.kind == kind)
    };
    let of_histogram = ["_bucket", "_sum", "_count"];
    is_of("", "gauge")
        || is_of("_total", "counter")
        || is_of("_info", "info")
        || of_histogram.iter().any(|end| is_of(end, "histogram"))
}

fn undocumented<'a>(queries: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    let names = queries.into_iter().flat_map(metric_names_in);
    let is_strange = |name: &String| !OTHERS.contains(&name.as_str()) && !is_documented(name);
    names.filter(is_strange).collect()
}

fn promtool(verb: &str, path: &str) {
    let run = Command::new("promtool")
        .args([verb, "rules"])
        .arg(repository_path(path))
        .output();
    let run = run.expect("promtool is there: make setup installs it");
    let output = String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned();
    assert!(
        run.status.success(),
        "promtool {verb} rules {path}: {output}"
    );
    assert!(output.contains("SUCCESS"), "{output}");
}

/// Returns the name of each alert and the text of its rule.
fn alerts() -> Vec<(String, String)> {
    let rules = read_repository_file(RULES);
    let alerts = rules.split("      - alert: ").skip(1).map(|alert| {
        let (name, rest) = alert.split_once('\n').expect("a rule");
        (name.to_owned(), rest.to_owned())
    });
    alerts.collect()
}

#[test]
fn promtool_finds_nothing_wrong() {
    promtool("check", RULES);
    promtool("test", TESTS);
}

#[test]
fn every_metric_of_the_alerts_is_one() {
    let rules = read_repository_file(RULES);
    // Summaries are sentences, and name no metrics.
    let of_rules = rules.lines().filter(|line| !line.contains("summary:"));
    let of_rules: Vec<_> = of_rules.collect();
    assert_eq!(undocumented(of_rules), BTreeSet::new());
    let named = metric_names_in(&rules);
    assert!(named.len() >= 12, "{named:?}");
    assert_eq!(
        undocumented(read_repository_file(TESTS).lines()),
        BTreeSet::new()
    );
}

#[test]
fn every_alert_has_a_runbook_and_tests() {
    let page = read_repository_file("docs/operating.md");
    let tests = read_repository_file(TESTS);
    let alerts = alerts();
    assert!(alerts.len() >= 12, "{alerts:?}");
    for (name, rule) in alerts {
        assert!(name.starts_with("Leasehold"), "{name}");
        let anchor = format!("docs/operating.md#{}\n", name.to_lowercase());
        assert!(rule.contains(&anchor), "{name}: {rule}");
        let heading = format!("\n### {name}\n");
        let (_, runbook) = page
            .split_once(&heading)
            .unwrap_or_else(|| panic!("{name}: no runbook"));
        let runbook = runbook.split("\n#").next().expect("its text");
        for part in ["**Means:**", "**Look:**", "**Do:**"] {
            assert!(runbook.contains(part), "{name}: {part} is missing");
        }
        let of_alert = tests.split("alertname: ").skip(1);
        let of_alert = of_alert.filter(|test| test.starts_with(&format!("{name}\n")));
        let (silent, fires): (Vec<_>, Vec<_>) =
            of_alert.partition(|test| test.contains("exp_alerts: []"));
        assert!(!fires.is_empty(), "{name} fires in no test");
        assert!(!silent.is_empty(), "{name} is silent in no test");
    }
}

fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if ["expr", "definition"].contains(&key.as_str()) => {
                        found.push(text.clone());
                    }
                    Value::String(_)
                    | Value::Null
                    | Value::Bool(_)
                    | Value::Number(_)
                    | Value::Array(_)
                    | Value::Object(_) => queries(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| queries(value, found)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[test]
fn the_dashboard_asks_five_questions_of_metrics_that_are_there() {
    let dashboard: Value = serde_json::from_str(&read_repository_file(DASHBOARD)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let rows = panels.iter().filter(|panel| panel["type"] == "row");
    let rows: Vec<_> = rows.filter_map(|row| row["title"].as_str()).collect();
    assert_eq!(rows, ROWS);
    let variables = dashboard["templating"]["list"]
        .as_array()
        .expect("variables");
    let names = variables
        .iter()
        .filter_map(|variable| variable["name"].as_str());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["datasource", "namespace", "pod"]
    );
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "an id twice");
    let mut found = Vec::new();
    queries(&dashboard, &mut found);
    assert!(found.len() > 30, "{found:?}");
    assert_eq!(
        undocumented(found.iter().map(String::as_str)),
        BTreeSet::new()
    );
    let named: BTreeSet<_> = found
        .iter()
        .flat_map(|query| metric_names_in(query))
        .collect();
    assert!(named.len() >= 25, "{named:?}");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{panel}");
    }
}

#[test]
fn names_of_metrics_are_found() {
    let query = r#"histogram_quantile(0.5, sum by (le) (rate(leasehold_x_bucket{job="leasehold"}[5m]))) / up"#;
    let names = metric_names_in(query);
    assert_eq!(
        names,
        ["leasehold_x_bucket", "up"].map(str::to_owned).into()
    );
    assert!(is_documented("leasehold_store_up"));
    assert!(!is_documented("leasehold_store_up_total"));
    assert!(!is_documented("leasehold_acquires"));
    assert!(is_documented("leasehold_acquire_wait_seconds_bucket"));
}
