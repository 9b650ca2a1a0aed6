//! `leasehold` at a real terminal, with and without a shell in between: the command is the
//! foreground job, reads, is interrupted, stopped and continued. Also the display while a lock is
//! waited for.

use std::{path::Path, time::Duration};

use leasehold::Client as Sdk;
use leasehold_tests::{
    broker::in_process::InProcessBroker,
    clock::boottime,
    process::{
        binaries::leasehold,
        leasehold_command::{Cli, supervisor_of, wait_until_signals_handled, with_default_signals},
        terminal::Terminal,
    },
    scale::print_figures,
    until::until,
};
use tokio::time::timeout;

const TIME_LIMIT: Duration = Duration::from_secs(10);
const PROMPT: &str = "PROMPT> ";
const COLUMNS: u16 = 200;

fn leader() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_on_terminal"))
}

/// Starts `leasehold` directly in a terminal.
fn direct(cli: &Cli, args: &[&str], columns: u16) -> Terminal {
    Terminal::start(leader(), &cli.command(args), columns)
}

/// Starts a shell in a terminal with `leasehold` in its `PATH`, and waits for the prompt.
async fn shell(cli: &Cli) -> Terminal {
    let mut bash = with_default_signals("bash");
    bash.args(["--norc", "--noprofile", "--noediting", "-i"]);
    let mut bash = cli.in_environment(bash, &[]);
    bash.env("PS1", PROMPT);
    let program = leasehold();
    let folder = program.parent().expect("a folder");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = format!("{}:{}", folder.display(), path.to_string_lossy());
    bash.env("PATH", path);
    let mut shell = Terminal::start(leader(), &bash, COLUMNS);
    prompted(&mut shell, 1).await;
    shell
}

/// Waits until the shell has printed this number of prompts.
async fn prompted(shell: &mut Terminal, times: usize) {
    let is_so = |screen: &str| screen.matches(PROMPT).count() >= times;
    shell.wait_for_output("a prompt", is_so).await;
}

/// Asserts the exit code of the last command, and that the shell is in the foreground again.
async fn code(shell: &mut Terminal, expected: i32) {
    shell.type_text("echo code-$?\n");
    shell.wait_for_text(&format!("code-{expected}\r\n")).await;
    let group = shell.foreground_group();
    assert_eq!(group, Some(shell.pid()), "the shell has the terminal again");
}

async fn sdk(broker: &InProcessBroker, owner: &str) -> Sdk {
    let client = Sdk::builder(&format!("http://{}", broker.api)).owner(owner);
    client.connect().await.expect("a broker that runs")
}

#[tokio::test]
async fn the_command_reads_from_the_terminal_and_the_shell_has_it_back() {
    let broker = InProcessBroker::start().await;
    let mut shell = shell(&Cli::for_broker(broker.api)).await;
    shell.type_text("leasehold run a -- sh -c 'echo on-$((40+2)); read x; echo got-$x; exit 5'\n");
    shell.wait_for_text("on-42").await;
    assert_ne!(shell.foreground_group(), Some(shell.pid()));
    shell.type_text("hello\n");
    shell.wait_for_text("got-hello").await;
    prompted(&mut shell, 2).await;
    code(&mut shell, 5).await;
    broker.stop().await;
}

#[tokio::test]
async fn ctrl_c_ends_the_command_and_two_kill_it() {
    let broker = InProcessBroker::start().await;
    let mut shell = shell(&Cli::for_broker(broker.api)).await;
    shell.type_text("leasehold run a -- sh -c 'echo on-$((40+2)); exec sleep 1000'\n");
    shell.wait_for_text("on-42").await;
    shell.type_text("\x03");
    prompted(&mut shell, 2).await;
    code(&mut shell, 130).await;
    let deaf = "trap \"echo no-\\$((1+2))\" INT; echo pid=$$.; echo on-$((40+3)); while :; do sleep 0.01; done";
    shell.type_text(&format!("leasehold run a -- sh -c '{deaf}'\n"));
    let screen = shell.wait_for_text("on-43").await;
    let pids = screen.split("pid=").filter_map(|text| text.split_once('.'));
    let command = pids.filter_map(|(pid, _)| pid.parse().ok()).next();
    shell.type_text("\x03");
    shell.wait_for_text("no-3").await;
    // A second signal is lost if it is sent before the first one is handled.
    wait_until_signals_handled(supervisor_of(command.expect("it prints its id"))).await;
    shell.type_text("\x03");
    prompted(&mut shell, 4).await;
    code(&mut shell, 137).await;
    broker.stop().await;
}

#[tokio::test]
async fn a_job_is_stopped_and_continued() {
    let broker = InProcessBroker::start().await;
    let mut shell = shell(&Cli::for_broker(broker.api)).await;
    shell
        .type_text("leasehold run a --ttl 60s -- sh -c 'echo on-$((40+2)); read x; echo got-$x'\n");
    shell.wait_for_text("on-42").await;
    shell.type_text("\x1a");
    shell.wait_for_text("Stopped").await;
    prompted(&mut shell, 2).await;
    assert_eq!(shell.foreground_group(), Some(shell.pid()));
    shell.type_text("fg\n");
    let foreground = async || (shell.foreground_group() != Some(shell.pid())).then_some(());
    until("the job is in the foreground", foreground).await;
    shell.type_text("again\n");
    shell.wait_for_text("got-again").await;
    prompted(&mut shell, 3).await;
    code(&mut shell, 0).await;
    broker.stop().await;
}

#[tokio::test]
async fn a_job_that_is_stopped_for_too_long_ends() {
    let broker = InProcessBroker::start().await;
    let mut shell = shell(&Cli::for_broker(broker.api)).await;
    shell.type_text(
        "leasehold run a --ttl 3s --kill-after 1s -- sh -c 'echo on-$((40+2)); read x'\n",
    );
    shell.wait_for_text("on-42").await;
    shell.type_text("\x1a");
    prompted(&mut shell, 2).await;
    let other = sdk(&broker, "other").await;
    let guard = other
        .lock("a")
        .wait(TIME_LIMIT)
        .acquire()
        .await
        .expect("it runs out");
    shell.type_text("fg\n");
    shell.wait_for_text("the lock \"a\" is lost").await;
    prompted(&mut shell, 3).await;
    code(&mut shell, 123).await;
    guard.release().await.expect("held");
    other.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn modes_that_a_killed_command_left_are_undone() {
    let broker = InProcessBroker::start().await;
    let mut shell = shell(&Cli::for_broker(broker.api)).await;
    shell.type_text("leasehold run a -- sh -c 'stty -echo; kill -9 $$'\n");
    prompted(&mut shell, 2).await;
    shell.type_text("stty -a | grep -o -- '-*echo ' | tr e E\n");
    let screen = shell.wait_for_text("Echo ").await;
    assert!(!screen.contains("-Echo "), "{screen}");
    code(&mut shell, 0).await;
    broker.stop().await;
}

#[tokio::test]
async fn the_progress_line_is_redrawn_and_removed() {
    let broker = InProcessBroker::start().await;
    let cli = Cli::for_broker(broker.api);
    let holder = sdk(&broker, "worker-9").await;
    let guard = holder
        .lock("orders/42")
        .reason("nightly")
        .try_acquire()
        .await;
    let guard = guard.expect("an answer").expect("free");
    let started_at = boottime();
    let mut terminal = direct(
        &cli,
        &["run", "orders/42", "--", "echo", "it runs"],
        COLUMNS,
    );
    terminal.wait_for_text("waiting for orders/42").await;
    let first = boottime() - started_at;
    let line = "waiting for orders/42: position 1 of 1, held by worker-9 \"nightly\" for ";
    terminal.wait_for_text(line).await;
    terminal
        .wait_for_output("a second drawing", |screen| {
            screen.matches(line).count() > 1
        })
        .await;
    guard.release().await.expect("held");
    let screen = terminal.wait_for_text("it runs").await;
    let (waited, _) = screen.split_once("it runs").expect("seen");
    assert!(
        waited.ends_with("(Ctrl-C to cancel)\r\u{1b}[2K"),
        "{waited:?}"
    );
    assert!(!waited.contains('\n'), "one line: {waited:?}");
    assert_eq!(terminal.wait_for_exit().await, Some(0));
    print_figures(&format!(
        "cli_terminal: first sign on the screen {}ms after the start",
        first.as_millis()
    ));
    assert!(first < Duration::from_secs(1), "{first:?}");
    holder.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn the_progress_line_fits_the_terminal() {
    let broker = InProcessBroker::start().await;
    let cli = Cli::for_broker(broker.api);
    let holder = sdk(&broker, "worker-9").await;
    let guard = holder
        .lock("orders/42")
        .try_acquire()
        .await
        .expect("an answer")
        .expect("free");
    let mut terminal = direct(&cli, &["run", "orders/42", "--", "true"], 40);
    let screen = terminal.wait_for_text("waiting for orders/42: posi").await;
    let drawn = screen.rsplit("\u{1b}[2K").next().expect("a drawing");
    assert_eq!(drawn.chars().count(), 39, "{drawn:?}");
    guard.release().await.expect("held");
    assert_eq!(terminal.wait_for_exit().await, Some(0));
    holder.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn ctrl_c_cancels_the_wait_and_leaves_the_queue() {
    let broker = InProcessBroker::start().await;
    let cli = Cli::for_broker(broker.api);
    let holder = sdk(&broker, "worker-9").await;
    let guard = holder
        .lock("a")
        .try_acquire()
        .await
        .expect("an answer")
        .expect("free");
    let mut terminal = direct(&cli, &["run", "a", "--", "echo", "it runs"], COLUMNS);
    terminal.wait_for_text("position 1 of 1").await;
    terminal.type_text("\x03");
    terminal
        .wait_for_text("leasehold: the wait was cancelled")
        .await;
    assert_eq!(terminal.wait_for_exit().await, Some(130));
    let observer = leasehold_tests::client::unary::Client::new("observer", &[broker.api], 0);
    let lock = observer
        .get_lock("a")
        .await
        .expect("an answer")
        .expect("held");
    assert_eq!(lock.queue_length, 0);
    guard.release().await.expect("held");
    holder.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn taking_a_lease_away_has_its_id_typed() {
    let broker = InProcessBroker::start().await;
    let mut cli = Cli::for_broker(broker.api);
    let holder = sdk(&broker, "worker-9").await;
    let guard = holder
        .lock("a")
        .try_acquire()
        .await
        .expect("an answer")
        .expect("free");
    let admin = format!("--admin-endpoint=http://{}", broker.admin);
    let (id, token) = (guard.lease_id().to_owned(), guard.fencing_token());
    cli.endpoint = format!("http://{}", broker.api);
    let overlap = format!("checks token {token}.");
    for (unsafe_now, then) in [
        ("", "can no longer rely on it."),
        ("--unsafe-now", &overlap),
    ] {
        let args = [
            "force-release",
            "a",
            &id,
            "--reason",
            "it hangs",
            &admin,
            unsafe_now,
        ];
        let args: Vec<_> = args.into_iter().filter(|arg| !arg.is_empty()).collect();
        let mut terminal = direct(&cli, &args, COLUMNS);
        let prompted = terminal
            .wait_for_text("Type the lease id to continue: ")
            .await;
        assert!(
            prompted.contains("\"a\" is held by worker-9 since "),
            "{prompted}"
        );
        assert!(prompted.contains(then), "{prompted}");
        terminal.type_text("yes\n");
        terminal
            .wait_for_text("leasehold: the lease id does not match; nothing was done")
            .await;
        assert_eq!(terminal.wait_for_exit().await, Some(125));
    }
    assert!(guard.is_valid(), "nothing was done");
    let args = ["force-release", "a", &id, "--reason", "it hangs", &admin];
    let mut terminal = direct(&cli, &args, COLUMNS);
    terminal
        .wait_for_text("Type the lease id to continue: ")
        .await;
    terminal.type_text(&format!("{id}\n"));
    terminal.wait_for_text("is revoked; 0 waiting").await;
    assert_eq!(terminal.wait_for_exit().await, Some(0));
    let reason = timeout(TIME_LIMIT, guard.lost()).await.expect("notified");
    assert!(reason.to_string().contains("it hangs"), "{reason}");
    holder.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn colours_are_for_terminals_that_want_them() {
    let cli = Cli::for_broker("127.0.0.1:1");
    let mut coloured = cli.command(&["--help"]);
    coloured.env("TERM", "xterm");
    let mut plain = cli.command(&["--help"]);
    plain.env("TERM", "xterm").env("NO_COLOR", "1");
    let mut shown = Vec::new();
    for command in [coloured, plain] {
        let mut terminal = Terminal::start(leader(), &command, COLUMNS);
        shown.push(terminal.wait_for_text("Exit codes:").await);
        let ended = timeout(TIME_LIMIT, terminal.wait_for_exit()).await;
        assert_eq!(ended.expect("it ends"), Some(0));
    }
    assert!(shown[0].contains("\u{1b}["), "{:?}", shown[0]);
    assert!(!shown[1].contains("\u{1b}["), "{:?}", shown[1]);
}
