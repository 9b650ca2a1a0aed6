//! Examples for grpcurl in `README.md` and `docs/raw-stubs.md`, run with grpcurl.

use std::{
    env, fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use leasehold_tests::{
    broker::in_process::InProcessBroker,
    client::unary::{AcquireCall, Client},
    clock::boottime,
    net::http2_proxy::{Http2Proxy, ProxyMode},
    process::temp_dir::TempDir,
    repository::paths::{repository_root, tool_folder},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

const NAME: &str = "invoices/4711";
const TTL: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(20);
/// Job script, which prints its fencing token and works until it reads a line.
const WORK: &str = "#!/bin/sh\necho \"token $1\"\nread -r _\n";

fn page() -> String {
    fs::read_to_string(repository_root().join("docs/raw-stubs.md")).expect("the page")
}

/// Returns a `bash` command with grpcurl in its `PATH`.
fn bash(arguments: &[&str]) -> Command {
    let mut command = Command::new("bash");
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [tool_folder("grpcurl")]
        .into_iter()
        .chain(env::split_paths(&path));
    command.env("PATH", env::join_paths(folders).expect("a path"));
    command.args(arguments).kill_on_drop(true);
    command
}

/// Runs a line of the page with the address of this broker.
async fn run_line(with: &str, broker: SocketAddr) -> Output {
    let page = page();
    let mut lines = page.lines();
    let line = lines.find(|line| line.starts_with("grpcurl ") && line.contains(with));
    let line = line.expect("the page has it");
    let line = line.replace("127.0.0.1:7070", &broker.to_string());
    let output = bash(&["-c", &line]).output().await;
    output.expect("a shell that runs")
}

/// Returns the code block of `README.md` that calls this method, with the address of `broker`.
fn readme_block(method: &str, broker: SocketAddr) -> String {
    let page = fs::read_to_string(repository_root().join("README.md")).expect("README.md");
    let mut blocks = page.split("```").skip(1).step_by(2);
    let block = blocks.find(|block| block.contains(&format!("leasehold.v1.LockService/{method}")));
    let block = block.unwrap_or_else(|| panic!("README.md has no block with {method}"));
    block.replace("127.0.0.1:7070", &broker.to_string())
}

/// Runs a script in `dir`, as if it was pasted into a shell.
async fn run_script(script: &str, dir: &Path) -> Output {
    let mut command = bash(&["-c", script]);
    let output = command.current_dir(dir).output().await;
    output.expect("a shell that runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The program of the page, with a TTL in seconds.
struct Job {
    child: Child,
    work: ChildStdin,
    stdout_lines: Lines<BufReader<ChildStdout>>,
}

impl Job {
    fn start(dir: &Path, broker: SocketAddr, ttl_s: u32) -> Self {
        let page = page();
        let (_, program) = page.split_once("```bash\n").expect("the page has it");
        let (program, _) = program.split_once("```").expect("it ends");
        assert!(program.contains("\"30s\""), "{program}");
        let program = program.replace("\"30s\"", &format!("\"{ttl_s}s\""));
        let [job, work] = [("job.sh", program.as_str()), ("work", WORK)]
            .map(|(name, text)| executable(&dir.join(name), text));
        let mut command = bash(&[&job, &broker.to_string(), &work]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell that runs");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Self {
            child,
            work: stdin.expect("a pipe"),
            stdout_lines: BufReader::new(stdout.expect("a pipe")).lines(),
        }
    }

    /// Waits until the program has started its work and returns its fencing token.
    async fn started_at(&mut self) -> i64 {
        let line = timeout(LIMIT, self.stdout_lines.next_line()).await;
        let line = line.expect("it begins in time").expect("a pipe");
        let line = line.expect("it begins");
        let token = line.strip_prefix("token ").map(str::parse);
        token.expect("it says its token").expect("a number")
    }

    /// Waits until the program exits and returns its exit code.
    async fn wait_for_exit(&mut self) -> Option<i32> {
        let status = timeout(LIMIT, self.child.wait()).await;
        status.expect("it ends in time").expect("its status").code()
    }
}

/// Returns a call that waits for the lock.
fn next() -> AcquireCall {
    AcquireCall::new(NAME, TTL, TTL)
}

fn executable(path: &Path, text: &str) -> String {
    fs::write(path, text).expect("write a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("make it executable");
    path.display().to_string()
}

#[tokio::test]
async fn the_lines_take_a_lock_show_it_and_say_why_it_is_refused() {
    let broker = InProcessBroker::start().await;
    let taken = run_line("/Acquire", broker.api).await;
    assert!(taken.status.success(), "{}", text(&taken.stderr));
    let taken = text(&taken.stdout);
    for field in ["\"leaseToken\"", "\"fencingToken\""] {
        assert!(taken.contains(field), "{taken}");
    }
    let shown = run_line("/GetLock", broker.api).await;
    let shown = text(&shown.stdout);
    assert!(
        shown.contains("\"holders\"") && shown.contains(NAME),
        "{shown}"
    );
    assert!(!shown.contains("leaseToken"), "{shown}");
    let refused = run_line("/Acquire", broker.api).await;
    assert!(!refused.status.success());
    let refused = text(&refused.stderr);
    for stdout_lines in [
        "Code: Aborted",
        "\"reason\": \"WAIT_TIMEOUT\"",
        "\"holders\"",
    ] {
        assert!(refused.contains(stdout_lines), "{stdout_lines}: {refused}");
    }
    broker.stop().await;
}

#[tokio::test]
async fn the_blocks_of_the_readme_acquire_and_release() {
    let (broker, dir) = (InProcessBroker::start().await, TempDir::new("readme"));
    let client = Client::new("observer", &[broker.api], 0);
    let acquired = run_script(&readme_block("Acquire", broker.api), dir.path()).await;
    assert!(acquired.status.success(), "{}", text(&acquired.stderr));
    let lock = client.get_lock(NAME).await.expect("an answer");
    assert_eq!(lock.expect("a held lock").holders.len(), 1);
    let released = run_script(&readme_block("Release", broker.api), dir.path()).await;
    assert!(released.status.success(), "{}", text(&released.stderr));
    let lock = client.get_lock(NAME).await.expect("an answer");
    assert!(lock.is_none_or(|lock| lock.holders.is_empty()));
    broker.stop().await;
}

#[tokio::test]
async fn the_lease_stream_of_the_readme_is_granted_and_acknowledged() {
    let broker = InProcessBroker::start().await;
    let block = readme_block("Hold", broker.api);
    let (line, messages) = block.trim_start().split_once('\n').expect("messages");
    let mut command = bash(&["-c", line]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("a shell that runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut stdout_lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    stdin
        .write_all(messages.as_bytes())
        .await
        .expect("it reads");
    for reply in ["\"granted\": {", "\"ack\": {"] {
        let seen = async {
            while let Some(line) = stdout_lines.next_line().await.expect("a pipe") {
                if line.contains(reply) {
                    return;
                }
            }
            panic!("grpcurl ended before {reply}");
        };
        timeout(LIMIT, seen).await.expect(reply);
    }
    drop(stdin);
    let status = timeout(LIMIT, child.wait()).await.expect("it ends in time");
    assert!(status.expect("its status").success());
    broker.stop().await;
}

#[tokio::test]
async fn the_program_works_under_the_lock_and_gives_it_back() {
    let (broker, dir) = (InProcessBroker::start().await, TempDir::new("grpcurl"));
    let mut job = Job::start(dir.path(), broker.api, 30);
    let token = job.started_at().await;
    let client = Client::new("next", &[broker.api], 0);
    let waiting = client.start_acquire_at(0, &next());
    client.wait_for_queue_length_at(0, NAME, 1).await;
    job.work.write_all(b"enough\n").await.expect("it reads");
    let next = waiting.await.expect("a call does not panic");
    let next = next.expect("it is released");
    assert!(next.token() > token, "{} {token}", next.token());
    assert_eq!(job.wait_for_exit().await, Some(0));
    broker.stop().await;
}

#[tokio::test]
async fn the_program_repeats_a_call_whose_answer_was_lost() {
    let (broker, dir) = (InProcessBroker::start().await, TempDir::new("grpcurl"));
    let proxy = Http2Proxy::start(broker.api).await;
    let client = Client::new("first", &[broker.api], 0);
    let held = client.acquire(&next()).await.expect("it is free");
    let mut job = Job::start(dir.path(), proxy.addr(), 30);
    client.wait_for_queue_length_at(0, NAME, 1).await;
    proxy.set_mode(ProxyMode::DropReplies);
    client.release(&held).await.expect("it is ours");
    proxy.wait_for_dropped_replies(1).await;
    proxy.set_mode(ProxyMode::Forward);
    assert_eq!(proxy.close_connections().await, 1);
    // With another request id the repeat would wait for the lock of the first attempt.
    let token = job.started_at().await;
    let lock = client.get_lock(NAME).await.expect("an answer");
    let holders = lock.expect("it is held").holders;
    let held: Vec<_> = holders.iter().map(|holder| holder.fencing_token).collect();
    assert_eq!(held, [token]);
    job.work.write_all(b"enough\n").await.expect("it reads");
    assert_eq!(job.wait_for_exit().await, Some(0));
    broker.stop().await;
}

#[tokio::test]
async fn the_program_ends_its_work_before_the_time_of_its_lease_is_over() {
    let (broker, dir) = (InProcessBroker::start().await, TempDir::new("grpcurl"));
    let mut job = Job::start(dir.path(), broker.api, 4);
    let token = job.started_at().await;
    let started_at = boottime();
    assert_eq!(job.wait_for_exit().await, Some(1), "its work was killed");
    let took = boottime() - started_at;
    assert!(took < Duration::from_secs(4), "{took:?}");
    let client = Client::new("next", &[broker.api], 0);
    let next = client.acquire(&next()).await.expect("it was released");
    assert!(next.token() > token, "{} {token}", next.token());
    broker.stop().await;
}
