//! Messages of `leasehold` without a terminal while it waits for a lock: one line per change.

use std::time::Duration;

use leasehold::Client as Sdk;
use leasehold_tests::{
    broker::in_process::InProcessBroker,
    client::unary::Client,
    net::http2_proxy::{Direction, Http2Proxy, ProxyMode},
    process::leasehold_command::Cli,
};
use rustix::process::Signal;

async fn sdk(broker: &InProcessBroker, owner: &str) -> Sdk {
    let client = Sdk::builder(&format!("http://{}", broker.api)).owner(owner);
    client.connect().await.expect("a broker that runs")
}

#[tokio::test]
async fn each_change_is_one_line_and_free_locks_need_none() {
    let broker = InProcessBroker::start().await;
    let cli = Cli::for_broker(broker.api);
    let observer = Client::new("observer", &[broker.api], 0);
    let owner = sdk(&broker, "first").await;
    let first = owner.lock("a").reason("backup").acquire().await;
    let first = first.expect("free");
    let second = sdk(&broker, "second").await;
    let ahead = tokio::join!(second.lock("a").acquire(), async {
        observer.wait_for_queue_length_at(0, "a", 1).await;
        let mut waiting = cli.start(&["run", "a", "--", "echo", "done"]);
        let mut line = waiting.next_stderr_line().await;
        // The first line may be printed before the call is queued.
        if line.contains("contacting") {
            line = waiting.next_stderr_line().await;
        }
        let start = "leasehold: waiting for a: position 2 of 2, held by first \"backup\" for ";
        assert!(line.starts_with(start), "{line}");
        assert!(line.ends_with(" (Ctrl-C to cancel)"), "{line}");
        first.release().await.expect("held");
        let line = waiting.next_stderr_line().await;
        let start = "leasehold: waiting for a: position 1 of 1, held by second for ";
        assert!(line.starts_with(start), "{line}");
        waiting
    });
    let (guard, waiting) = ahead;
    guard.expect("its turn").release().await.expect("held");
    let ran = waiting.wait_for_exit().await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "done\n"));
    assert!(!ran.stderr.contains('\u{1b}'), "{}", ran.stderr);
    let free = cli.run(&["run", "b", "--", "true"]).await;
    assert_eq!((free.code, free.stderr.as_str()), (Some(0), ""));
    owner.shutdown().await;
    second.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_that_does_not_answer_is_named_during_the_call() {
    let broker = InProcessBroker::start().await;
    let proxy = Http2Proxy::start(broker.api).await;
    proxy.set_mode(ProxyMode::DropFrames(Direction::Both));
    let cli = Cli::for_broker(proxy.addr());
    let mut asking = cli.start(&["run", "a", "--", "true"]);
    let line = asking.next_stderr_line().await;
    let start = format!("leasehold: waiting for a: contacting {} for ", cli.endpoint);
    assert!(line.starts_with(&start), "{line}");
    let ran = asking.wait_for_exit().await;
    assert_eq!(ran.code, Some(125));
    let expected = format!(
        "leasehold: no broker answers: {}: no answer within 2s. ",
        cli.endpoint
    );
    assert!(ran.stderr.starts_with(&expected), "{}", ran.stderr);
    proxy.close_connections().await;
    broker.stop().await;
}

#[tokio::test]
async fn quiet_says_nothing_and_a_signal_gives_up() {
    let broker = InProcessBroker::start().await;
    let cli = Cli::for_broker(broker.api);
    let holder = sdk(&broker, "holder").await;
    let guard = holder.lock("a").acquire().await.expect("free");
    let observer = Client::new("observer", &[broker.api], 0);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let waiting = cli.start(&["run", "-q", "a", "--", "true"]);
        observer.wait_for_queue_length_at(0, "a", 1).await;
        // The pause exceeds the time until a message would be printed.
        tokio::time::sleep(Duration::from_millis(300)).await;
        waiting.signal(signal);
        let ran = waiting.wait_for_exit().await;
        assert_eq!(
            (ran.code, ran.stderr.as_str()),
            (Some(code), "leasehold: the wait was cancelled\n")
        );
        let lock = observer
            .get_lock("a")
            .await
            .expect("an answer")
            .expect("held");
        assert_eq!(lock.queue_length, 0, "the queue position is given up");
    }
    guard.release().await.expect("held");
    holder.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn the_holder_is_named_with_commands_to_try() {
    let broker = InProcessBroker::start().await;
    let cli = Cli::for_broker(broker.api);
    let holder = sdk(&broker, "worker-9").await;
    let guard = holder
        .lock("a")
        .reason("nightly")
        .acquire()
        .await
        .expect("free");
    for (args, start, next) in [
        (
            &["run", "-q", "-n", "a", "--", "true"][..],
            "",
            "leasehold run --wait 5m a -- …",
        ),
        (
            &["run", "-q", "--wait=200ms", "a", "--", "true"],
            "the wait timed out: ",
            "leasehold run --wait 0.4s a -- …",
        ),
        (&["hold", "-q", "-n", "a"], "", "leasehold hold --wait 5m a"),
        (&["acquire", "-n", "a"], "", "leasehold acquire --wait 5m a"),
        (
            &["acquire", "--wait=200ms", "a"],
            "the wait timed out: ",
            "leasehold acquire --wait 0.4s a",
        ),
    ] {
        let ran = cli.run(args).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(124), ""), "{args:?}");
        let expected = ran.stderr;
        let start =
            format!("leasehold: {start}lock \"a\" is held by worker-9 (\"nightly\") since ");
        assert!(expected.starts_with(&start), "{expected}");
        assert!(
            expected.ends_with(&format!("). Try: {next}\n")),
            "{expected}"
        );
    }
    guard.release().await.expect("held");
    holder.shutdown().await;
    broker.stop().await;
}
