//! Flash sale from the seeds (hand-written Redis locks), over the real API and a real Redis.

use std::collections::HashMap;

use leasehold_tests::broker::deployment::Deployment;
use leasehold_tests::process::worker_processes::parse_counts;
use leasehold_tests::scale::print_figures;
use tokio::process::Command;

#[tokio::test(flavor = "multi_thread")]
async fn sells_exactly_the_stock_to_a_crowd() {
    let deployment = Deployment::start(1).await;
    let endpoint = deployment.addrs()[0].to_string();
    let counts = run_sale(&["--endpoint", &endpoint]).await;
    assert_eq!(
        (counts["buyers"], counts["sold"], counts["left"]),
        (2000, 10, 0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn oversells_without_the_lock() {
    let counts = run_sale(&["--no-lock"]).await;
    assert!(counts["sold"] > 10, "the sale must need a lock: {counts:?}");
}

async fn run_sale(args: &[&str]) -> HashMap<String, u64> {
    let output = Command::new(env!("CARGO_BIN_EXE_flash_sale"))
        .args(args)
        .output()
        .await;
    let output = output.expect("run the example");
    let text = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    print_figures(&format!("flash_sale {}: {}", args.join(" "), text.trim()));
    parse_counts(&text)
}
