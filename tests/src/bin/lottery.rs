//! A lottery: every instance of a service tries to draw, and exactly one may. The lock selects the
//! instance that draws; the others read the result.
//!
//! `cargo run -p leasehold-tests --bin lottery -- --endpoint 127.0.0.1:7070` (`--no-lock` to see
//! several draw), with a broker at that address.

#![expect(clippy::print_stdout, reason = "an example talks to the terminal")]

use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use leasehold_tests::client::unary::{AcquireCall, Client};
use leasehold_tests::process::temp_dir::TempDir;
use leasehold_tests::process::worker_processes::{run_workers, wait_for_start};
use rand::Rng;
use tonic::Status;

const LOCK: &str = "lottery/draw";
const TTL: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);
const DRAW_WORK: Duration = Duration::from_millis(50);
const TICKETS: u32 = 1000;

#[derive(Debug, Clone, Parser)]
struct Args {
    /// Address of the broker
    #[arg(long, default_value = "127.0.0.1:7070")]
    endpoint: SocketAddr,
    /// Number of instances, each of which is a process
    #[arg(long, default_value_t = 20)]
    instances: usize,
    /// Draw without the lock.
    #[arg(long)]
    no_lock: bool,
    /// Be one of the instances, with this file of results.
    #[arg(long, hide = true)]
    results: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<(), Status> {
    let args = Args::parse();
    match args.results.clone() {
        Some(results) => {
            wait_for_start();
            println!("{}", run_instance(&args, &results).await?);
        }
        None => run_lottery(&args).await,
    }
    Ok(())
}

async fn run_lottery(args: &Args) {
    let dir = TempDir::new("lottery");
    let results = dir.path().join("results");
    std::fs::write(&results, "").expect("create the file of results");
    let mut words = vec![
        format!("--endpoint={}", args.endpoint),
        format!("--results={}", results.display()),
    ];
    words.extend(args.no_lock.then(|| "--no-lock".to_owned()));
    let outputs = run_workers(std::iter::repeat_n(words, args.instances)).await;
    let drawn = read(&results).len();
    let saw = |text: &&String| text.starts_with("saw");
    let seen = outputs.iter().filter(saw).count();
    let mut tickets: Vec<_> = outputs
        .iter()
        .filter_map(|text| text.split(' ').next_back())
        .collect();
    tickets.sort_unstable();
    tickets.dedup();
    println!(
        "instances={} drawn={drawn} seen={seen} results={}",
        args.instances,
        tickets.len()
    );
}

async fn run_instance(args: &Args, results: &Path) -> Result<String, Status> {
    if args.no_lock {
        return Ok(draw_or_read_result(results).await);
    }
    let client = Client::new(
        &format!("instance-{}", std::process::id()),
        &[args.endpoint],
        0,
    );
    let held = client
        .acquire(&AcquireCall::new(LOCK, TTL, PATIENCE))
        .await?;
    let outcome = draw_or_read_result(results).await;
    client.release(&held).await?;
    Ok(outcome)
}

async fn draw_or_read_result(results: &Path) -> String {
    if let Some(ticket) = read(results).first() {
        return format!("saw {ticket}");
    }
    tokio::time::sleep(DRAW_WORK).await;
    let ticket = rand::thread_rng().gen_range(0..TICKETS);
    let mut file = OpenOptions::new()
        .append(true)
        .open(results)
        .expect("open the results");
    file.write_all(format!("{ticket}\n").as_bytes())
        .expect("write the result");
    format!("drew {ticket}")
}

fn read(results: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(results).expect("read the results");
    text.lines().map(str::to_owned).collect()
}
