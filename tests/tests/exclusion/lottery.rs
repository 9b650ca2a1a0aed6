//! Lottery from the seeds (hand-written Redis locks), over the real API and a real Redis. Exactly
//! one of many instances draws.

use std::collections::HashMap;

use leasehold_tests::broker::deployment::Deployment;
use leasehold_tests::process::worker_processes::parse_counts;
use leasehold_tests::scale::print_figures;
use tokio::process::Command;

#[tokio::test(flavor = "multi_thread")]
async fn exactly_one_of_many_instances_draws() {
    let deployment = Deployment::start(1).await;
    let endpoint = deployment.addrs()[0].to_string();
    let counts = run_lottery(&["--endpoint", &endpoint]).await;
    assert_eq!(
        (counts["drawn"], counts["seen"], counts["results"]),
        (1, 19, 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn several_draw_without_the_lock() {
    let counts = run_lottery(&["--no-lock"]).await;
    assert!(
        counts["drawn"] > 1,
        "the lottery must need a lock: {counts:?}"
    );
}

async fn run_lottery(args: &[&str]) -> HashMap<String, u64> {
    let output = Command::new(env!("CARGO_BIN_EXE_lottery"))
        .args(args)
        .output()
        .await;
    let output = output.expect("run the example");
    let text = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    print_figures(&format!("lottery {}: {}", args.join(" "), text.trim()));
    parse_counts(&text)
}
