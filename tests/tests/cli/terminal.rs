//! `leasehold` at a real terminal, with and without a shell in between: the command is the foreground
//! job, reads, is interrupted, stopped and continued; and what is on the screen while a lock is waited for.

use std::{path::Path, time::Duration};

use leasehold::Client as Sdk;
use leasehold_tests::{
    binary::leasehold,
    cli::{Cli, attentive, guard_of, has_heard},
    clock::boottime,
    in_process::InProcess,
    scale::figures,
    terminal::Terminal,
    until::until,
};
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(10);
const PROMPT: &str = "PROMPT> ";
const COLUMNS: u16 = 200;

fn leader() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_on_terminal"))
}

/// The program itself in a terminal.
fn direct(cli: &Cli, args: &[&str], columns: u16) -> Terminal {
    Terminal::start(leader(), &cli.command(args), columns)
}

/// A shell in a terminal that finds `leasehold`, and has prompted.
async fn shell(cli: &Cli) -> Terminal {
    let mut bash = attentive("bash");
    bash.args(["--norc", "--noprofile", "--noediting", "-i"]);
    let mut bash = cli.called_by(bash, &[]);
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

/// Waits until the shell has prompted so often.
async fn prompted(shell: &mut Terminal, times: usize) {
    let is_so = |screen: &str| screen.matches(PROMPT).count() >= times;
    shell.shows("a prompt", is_so).await;
}

/// Asks the shell for the code of the last command.
async fn code(shell: &mut Terminal, expected: i32) {
    shell.types("echo code-$?\n");
    shell.sees(&format!("code-{expected}\r\n")).await;
    let group = shell.foreground();
    assert_eq!(group, Some(shell.pid()), "the shell has the terminal again");
}

async fn sdk(broker: &InProcess, owner: &str) -> Sdk {
    let client = Sdk::builder(&format!("http://{}", broker.api)).owner(owner);
    client.connect().await.expect("a broker that runs")
}

#[tokio::test]
async fn the_command_reads_from_the_terminal_and_the_shell_has_it_back() {
    let broker = InProcess::start().await;
    let mut shell = shell(&Cli::at(broker.api)).await;
    shell.types("leasehold run a -- sh -c 'echo on-$((40+2)); read x; echo got-$x; exit 5'\n");
    shell.sees("on-42").await;
    assert_ne!(shell.foreground(), Some(shell.pid()));
    shell.types("hello\n");
    shell.sees("got-hello").await;
    prompted(&mut shell, 2).await;
    code(&mut shell, 5).await;
    broker.stop().await;
}

#[tokio::test]
async fn ctrl_c_ends_the_command_and_two_kill_it() {
    let broker = InProcess::start().await;
    let mut shell = shell(&Cli::at(broker.api)).await;
    shell.types("leasehold run a -- sh -c 'echo on-$((40+2)); exec sleep 1000'\n");
    shell.sees("on-42").await;
    shell.types("\x03");
    prompted(&mut shell, 2).await;
    code(&mut shell, 130).await;
    let deaf = "trap \"echo no-\\$((1+2))\" INT; echo pid=$$.; echo on-$((40+3)); while :; do sleep 0.01; done";
    shell.types(&format!("leasehold run a -- sh -c '{deaf}'\n"));
    let screen = shell.sees("on-43").await;
    let pids = screen.split("pid=").filter_map(|text| text.split_once('.'));
    let command = pids.filter_map(|(pid, _)| pid.parse().ok()).next();
    shell.types("\x03");
    shell.sees("no-3").await;
    // Of two signals that are sent before one is heard the second is nothing.
    has_heard(guard_of(command.expect("it tells its id"))).await;
    shell.types("\x03");
    prompted(&mut shell, 4).await;
    code(&mut shell, 137).await;
    broker.stop().await;
}

#[tokio::test]
async fn a_job_is_stopped_and_continued() {
    let broker = InProcess::start().await;
    let mut shell = shell(&Cli::at(broker.api)).await;
    shell.types("leasehold run a --ttl 60s -- sh -c 'echo on-$((40+2)); read x; echo got-$x'\n");
    shell.sees("on-42").await;
    shell.types("\x1a");
    shell.sees("Stopped").await;
    prompted(&mut shell, 2).await;
    assert_eq!(shell.foreground(), Some(shell.pid()));
    shell.types("fg\n");
    let foreground = async || (shell.foreground() != Some(shell.pid())).then_some(());
    until("the job is in the foreground", foreground).await;
    shell.types("again\n");
    shell.sees("got-again").await;
    prompted(&mut shell, 3).await;
    code(&mut shell, 0).await;
    broker.stop().await;
}

#[tokio::test]
async fn a_job_that_is_stopped_for_too_long_is_over() {
    let broker = InProcess::start().await;
    let mut shell = shell(&Cli::at(broker.api)).await;
    shell.types("leasehold run a --ttl 3s --kill-after 1s -- sh -c 'echo on-$((40+2)); read x'\n");
    shell.sees("on-42").await;
    shell.types("\x1a");
    prompted(&mut shell, 2).await;
    let other = sdk(&broker, "other").await;
    let guard = other
        .lock("a")
        .wait(SOON)
        .acquire()
        .await
        .expect("it runs out");
    shell.types("fg\n");
    shell.sees("the lock \"a\" is lost").await;
    prompted(&mut shell, 3).await;
    code(&mut shell, 123).await;
    guard.release().await.expect("held");
    other.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn modes_that_a_killed_command_left_are_undone() {
    let broker = InProcess::start().await;
    let mut shell = shell(&Cli::at(broker.api)).await;
    shell.types("leasehold run a -- sh -c 'stty -echo; kill -9 $$'\n");
    prompted(&mut shell, 2).await;
    shell.types("stty -a | grep -o -- '-*echo ' | tr e E\n");
    let screen = shell.sees("Echo ").await;
    assert!(!screen.contains("-Echo "), "{screen}");
    code(&mut shell, 0).await;
    broker.stop().await;
}

#[tokio::test]
async fn a_waiting_line_is_redrawn_and_taken_away() {
    let broker = InProcess::start().await;
    let cli = Cli::at(broker.api);
    let holder = sdk(&broker, "worker-9").await;
    let guard = holder
        .lock("orders/42")
        .reason("nightly")
        .try_acquire()
        .await;
    let guard = guard.expect("an answer").expect("free");
    let begun = boottime();
    let mut terminal = direct(
        &cli,
        &["run", "orders/42", "--", "echo", "it runs"],
        COLUMNS,
    );
    terminal.sees("waiting for orders/42").await;
    let first = boottime() - begun;
    let line = "waiting for orders/42: position 1 of 1, held by worker-9 \"nightly\" for ";
    terminal.sees(line).await;
    terminal
        .shows("a second drawing", |screen| {
            screen.matches(line).count() > 1
        })
        .await;
    guard.release().await.expect("held");
    let screen = terminal.sees("it runs").await;
    let (waited, _) = screen.split_once("it runs").expect("seen");
    assert!(
        waited.ends_with("(Ctrl-C to give up)\r\u{1b}[2K"),
        "{waited:?}"
    );
    assert!(!waited.contains('\n'), "one line: {waited:?}");
    assert_eq!(terminal.ended().await, Some(0));
    figures(&format!(
        "cli_terminal: first sign on the screen {}ms after the start",
        first.as_millis()
    ));
    assert!(first < Duration::from_secs(1), "{first:?}");
    holder.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_waiting_line_fits_the_terminal() {
    let broker = InProcess::start().await;
    let cli = Cli::at(broker.api);
    let holder = sdk(&broker, "worker-9").await;
    let guard = holder
        .lock("orders/42")
        .try_acquire()
        .await
        .expect("an answer")
        .expect("free");
    let mut terminal = direct(&cli, &["run", "orders/42", "--", "true"], 40);
    let screen = terminal.sees("waiting for orders/42: posi").await;
    let drawn = screen.rsplit("\u{1b}[2K").next().expect("a drawing");
    assert_eq!(drawn.chars().count(), 39, "{drawn:?}");
    guard.release().await.expect("held");
    assert_eq!(terminal.ended().await, Some(0));
    holder.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn ctrl_c_gives_up_waiting_and_the_place_in_line() {
    let broker = InProcess::start().await;
    let cli = Cli::at(broker.api);
    let holder = sdk(&broker, "worker-9").await;
    let guard = holder
        .lock("a")
        .try_acquire()
        .await
        .expect("an answer")
        .expect("free");
    let mut terminal = direct(&cli, &["run", "a", "--", "echo", "it runs"], COLUMNS);
    terminal.sees("position 1 of 1").await;
    terminal.types("\x03");
    terminal.sees("leasehold: gave up waiting").await;
    assert_eq!(terminal.ended().await, Some(130));
    let observer = leasehold_tests::client::Client::new("observer", &[broker.api], 0);
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
    let broker = InProcess::start().await;
    let mut cli = Cli::at(broker.api);
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
    for (unsafe_now, then) in [("", "can trust it no more."), ("--unsafe-now", &overlap)] {
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
        let asked = terminal.sees("Type the lease id to go on: ").await;
        assert!(
            asked.contains("\"a\" is held by worker-9 since "),
            "{asked}"
        );
        assert!(asked.contains(then), "{asked}");
        terminal.types("yes\n");
        terminal
            .sees("leasehold: that is not the lease id; nothing was done")
            .await;
        assert_eq!(terminal.ended().await, Some(125));
    }
    assert!(guard.is_valid(), "nothing was done");
    let args = ["force-release", "a", &id, "--reason", "it hangs", &admin];
    let mut terminal = direct(&cli, &args, COLUMNS);
    terminal.sees("Type the lease id to go on: ").await;
    terminal.types(&format!("{id}\n"));
    terminal.sees("is taken away; 0 waiting").await;
    assert_eq!(terminal.ended().await, Some(0));
    let why = timeout(SOON, guard.lost()).await.expect("told");
    assert!(why.to_string().contains("it hangs"), "{why}");
    holder.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn colours_are_for_terminals_that_want_them() {
    let cli = Cli::at("127.0.0.1:1");
    let mut coloured = cli.command(&["--help"]);
    coloured.env("TERM", "xterm");
    let mut plain = cli.command(&["--help"]);
    plain.env("TERM", "xterm").env("NO_COLOR", "1");
    let mut shown = Vec::new();
    for command in [coloured, plain] {
        let mut terminal = Terminal::start(leader(), &command, COLUMNS);
        shown.push(terminal.sees("Exit codes:").await);
        let ended = timeout(SOON, terminal.ended()).await;
        assert_eq!(ended.expect("it ends"), Some(0));
    }
    assert!(shown[0].contains("\u{1b}["), "{:?}", shown[0]);
    assert!(!shown[1].contains("\u{1b}["), "{:?}", shown[1]);
}
