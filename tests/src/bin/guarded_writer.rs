//! Holds a lock with the Rust client and writes to a resource every few milliseconds. Before each
//! write it checks its guard, and it stops when the guard is no longer valid.
//!
//! `cargo run -p leasehold-tests --bin guarded_writer -- --resource 127.0.0.1:9000 a`, with a
//! broker at the default address and a program that reads lines at the address of the resource.
//! Prints `held` once it has the lock.

#![expect(clippy::print_stdout, reason = "an example talks to the terminal")]

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread::sleep,
    time::Duration,
};

use clap::Parser;
use leasehold::{Client, Held};
use leasehold_tests::{clock::boottime, sdk::resource::Report};

const WRITE_INTERVAL: Duration = Duration::from_millis(2);
/// Number of checks after the guard has become invalid.
const CHECKS_AFTER_LOSS: usize = 50;

#[derive(Debug, Clone, Parser)]
struct Args {
    /// URL of the broker
    #[arg(long, default_value = "http://127.0.0.1:7070")]
    endpoint: String,
    /// Address of the resource, which receives the writes and the reports of the loss
    #[arg(long)]
    resource: SocketAddr,
    /// TTL of the lock
    #[arg(long, default_value_t = 10_000)]
    ttl_ms: u64,
    /// Time between checking the guard and writing
    #[arg(long, default_value_t = 0)]
    work_us: u64,
    /// Write without checking the guard
    #[arg(long, conflicts_with = "idle")]
    careless: bool,
    /// Neither write nor check the guard, only wait for the loss
    #[arg(long)]
    idle: bool,
    /// Name of the lock
    lock: String,
}

/// Connection to the resource, which receives lines.
#[derive(Clone)]
struct ResourceConnection(Arc<Mutex<TcpStream>>);

#[tokio::main]
async fn main() {
    let args = Args::parse();
    let resource = TcpStream::connect(args.resource).expect("the resource listens");
    resource.set_nodelay(true).expect("a TCP socket");
    let resource = ResourceConnection(Arc::new(Mutex::new(resource)));
    let owner = format!("writer-{}", std::process::id());
    let client = Client::builder(&args.endpoint).owner(owner).connect();
    let client = client.await.expect("a broker that runs");
    let ttl = Duration::from_millis(args.ttl_ms);
    let guard = client.lock(args.lock.as_str()).ttl(ttl).try_acquire().await;
    let guard = guard.expect("a broker that answers").expect("it is free");
    println!("held");
    let (held, to) = (guard.held(), resource.clone());
    let writing = tokio::task::spawn_blocking(move || write_until_invalid(&args, &held, &to));
    guard.lost().await;
    let is_valid = guard.is_valid();
    let at = boottime();
    resource.send_report(&Report::Lost { at, is_valid });
    writing.await.expect("the writer does not panic");
    let how = guard.release().await;
    let how = how.map_or_else(|reason| reason.to_string(), |()| "in time".to_owned());
    resource.send_report(&Report::Released(how));
}

fn write_until_invalid(args: &Args, held: &Held, resource: &ResourceConnection) {
    if args.idle {
        return;
    }
    let mut refused = 0;
    while refused < CHECKS_AFTER_LOSS {
        let asked_at = boottime();
        if args.careless || held.is_valid() {
            let until = asked_at + held.remaining();
            sleep(Duration::from_micros(args.work_us));
            let token = held.fencing_token();
            resource.send_report(&Report::Write {
                token,
                checked_at: asked_at,
                valid_until: until,
            });
        } else {
            if refused == 0 {
                let reason = held.lost_reason().expect("a lost lock says why");
                let reason = reason.to_string();
                resource.send_report(&Report::Rejected {
                    checked_at: asked_at,
                    reason,
                });
            }
            refused += 1;
        }
        sleep(WRITE_INTERVAL);
    }
}

impl ResourceConnection {
    fn send_report(&self, report: &Report) {
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!("{report}\n");
        let written = socket.write_all(line.as_bytes());
        written.expect("the resource lives longer");
    }
}
