//! Worker processes of an example that all start at the same time.

use std::collections::HashMap;
use std::io::{Read, stdin};
use std::process::Stdio;

use tokio::process::Command;

/// Runs this program again once for each set of arguments, lets all processes start their work
/// together, and returns the output of each.
pub async fn run_workers(workers: impl IntoIterator<Item = Vec<String>>) -> Vec<String> {
    let program = std::env::current_exe().expect("a program knows its own path");
    let mut children = Vec::new();
    for args in workers {
        let mut command = Command::new(&program);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        children.push(command.spawn().expect("start a worker process"));
    }
    // A worker starts its work at the end of its stdin.
    children
        .iter_mut()
        .for_each(|child| drop(child.stdin.take()));
    let mut outputs = Vec::new();
    for child in children {
        let output = child
            .wait_with_output()
            .await
            .expect("wait for a worker process");
        assert!(
            output.status.success(),
            "a worker failed: {}",
            output.status
        );
        outputs.push(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    outputs
}

/// Waits, in a worker, until all workers have started.
pub fn wait_for_start() {
    stdin()
        .read_to_end(&mut Vec::new())
        .expect("stdin is a pipe of the parent");
}

/// Parses the `name=number` words of an example's output.
#[must_use]
pub fn parse_counts(text: &str) -> HashMap<String, u64> {
    let words = text
        .split_whitespace()
        .filter_map(|word| word.split_once('='));
    words
        .filter_map(|(name, number)| Some((name.to_owned(), number.parse().ok()?)))
        .collect()
}
