//! Holds a lock with the Rust client and writes to a resource every few milliseconds, each time
//! after it has asked its guard, until the guard says no.
//!
//! `cargo run -p leasehold-tests --bin guarded_writer -- --resource 127.0.0.1:9000 a`, with a broker
//! at the default address and something that reads lines at the resource's. Prints `held` once it
//! has the lock.

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
use leasehold_tests::{clock::boottime, resource::Report};

const EVERY: Duration = Duration::from_millis(2);
/// How often it asks on when the guard has said no.
const ASKED_AGAIN: usize = 50;

#[derive(Debug, Clone, Parser)]
struct Args {
    /// The broker.
    #[arg(long, default_value = "http://127.0.0.1:7070")]
    endpoint: String,
    /// Where to write, and to say what became of the lock.
    #[arg(long)]
    resource: SocketAddr,
    /// Wished validity.
    #[arg(long, default_value_t = 10_000)]
    ttl_ms: u64,
    /// How long it works between asking its guard and writing.
    #[arg(long, default_value_t = 0)]
    work_us: u64,
    /// Never ask the guard before a write.
    #[arg(long, conflicts_with = "idle")]
    careless: bool,
    /// Write nothing and ask nothing: only wait for the loss to be reported.
    #[arg(long)]
    idle: bool,
    /// What to hold.
    lock: String,
}

/// Where lines go.
#[derive(Clone)]
struct Resource(Arc<Mutex<TcpStream>>);

#[tokio::main]
async fn main() {
    let args = Args::parse();
    let resource = TcpStream::connect(args.resource).expect("the resource listens");
    resource.set_nodelay(true).expect("a TCP socket");
    let resource = Resource(Arc::new(Mutex::new(resource)));
    let owner = format!("writer-{}", std::process::id());
    let client = Client::builder(&args.endpoint).owner(owner).connect();
    let client = client.await.expect("a broker that runs");
    let ttl = Duration::from_millis(args.ttl_ms);
    let guard = client.lock(args.lock.as_str()).ttl(ttl).try_acquire().await;
    let guard = guard.expect("a broker that answers").expect("it is free");
    println!("held");
    let (held, to) = (guard.held(), resource.clone());
    let writing = tokio::task::spawn_blocking(move || work(&args, &held, &to));
    guard.lost().await;
    let is_valid = guard.is_valid();
    let at = boottime();
    resource.tell(&Report::Lost { at, is_valid });
    writing.await.expect("the writer does not panic");
    let how = guard.release().await;
    let how = how.map_or_else(|why| why.to_string(), |()| "in time".to_owned());
    resource.tell(&Report::Released(how));
}

fn work(args: &Args, held: &Held, resource: &Resource) {
    if args.idle {
        return;
    }
    let mut refused = 0;
    while refused < ASKED_AGAIN {
        let asked = boottime();
        if args.careless || held.is_valid() {
            let until = asked + held.remaining();
            sleep(Duration::from_micros(args.work_us));
            let token = held.fencing_token();
            resource.tell(&Report::Write {
                token,
                asked,
                until,
            });
        } else {
            if refused == 0 {
                let why = held.lost_reason().expect("a lost lock says why");
                let why = why.to_string();
                resource.tell(&Report::Refused { asked, why });
            }
            refused += 1;
        }
        sleep(EVERY);
    }
}

impl Resource {
    fn tell(&self, report: &Report) {
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!("{report}\n");
        let told = socket.write_all(line.as_bytes());
        told.expect("the resource lives longer");
    }
}
