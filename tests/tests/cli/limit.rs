//! `leasehold set-limit`: output, exit codes, and what `get` and `ls` show of a semaphore.

use leasehold_tests::{
    broker::in_process::InProcessBroker, process::leasehold_command::Cli,
    repository::golden::parse_output,
};
use serde_json::json;

#[tokio::test]
async fn a_limit_is_set_shown_followed_and_removed() {
    let broker = InProcessBroker::start().await;
    let cli = Cli::for_broker(broker.api);
    let set = cli.run(&["set-limit", "pool", "3"]).await;
    assert_eq!(
        (set.code, set.stdout.as_str()),
        (Some(0), "the limit of pool is 3\n"),
        "{set:?}"
    );
    let listed = cli.run(&["ls"]).await.stdout;
    assert!(listed.starts_with("pool\tfree\t0\t"), "{listed}");
    let acquire = ["acquire", "pool", "--permits=2/9", "-n"];
    let lease = parse_output(&cli.run(&acquire).await);
    assert_eq!(lease["locks"][0]["limit"], json!(3), "the limit in use");
    let shown = cli.run(&["get", "pool"]).await.stdout;
    let usage = "default/pool: held, semaphore: 2 permits used, 1 free (limit 3, set), ";
    assert!(shown.starts_with(usage), "{shown}");
    let rejected = cli.run(&acquire).await;
    assert_eq!(rejected.code, Some(124), "{rejected:?}");
    let again = parse_output(&cli.run(&["set-limit", "pool", "5", "-o=json"]).await);
    let output = json!({
        "namespace": "default",
        "name": "pool",
        "limit": 5,
        "previous_limit": 3,
    });
    assert_eq!(again, output);
    let removed = cli.run(&["set-limit", "pool", "none"]).await;
    assert_eq!(removed.stdout, "the limit of pool is removed; it was 5\n");
    let nothing = cli.run(&["set-limit", "pool", "none"]).await;
    assert_eq!(
        (nothing.code, nothing.stdout.as_str()),
        (Some(0), "pool had no set limit\n")
    );
    for limit in ["0", "1001", "x"] {
        let invalid = cli.run(&["set-limit", "pool", limit]).await;
        assert_eq!(invalid.code, Some(125), "{invalid:?}");
        assert!(
            invalid.stderr.contains("1 to 1000, or `none`"),
            "{invalid:?}"
        );
    }
    let exclusive = cli.run(&["acquire", "other", "-n"]).await;
    assert_eq!(exclusive.code, Some(0), "{exclusive:?}");
    let mismatch = cli.run(&["set-limit", "other", "2"]).await;
    assert_ne!(mismatch.code, Some(0), "{mismatch:?}");
    assert!(
        mismatch
            .stderr
            .contains("set the limit when the lock is idle"),
        "{mismatch:?}"
    );
    broker.stop().await;
}
