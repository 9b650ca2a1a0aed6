//! Holds locks on one lease stream until it is killed: one lease for each lock, with a heartbeat
//! every third of the ttl.
//!
//! `cargo run -p leasehold-tests --bin hold_locks -- --endpoint 127.0.0.1:7070 a b`, with a broker
//! at that address. Prints `held` once it has all locks.

#![expect(clippy::print_stdout, reason = "an example talks to the terminal")]

use std::{net::SocketAddr, time::Duration};

use clap::Parser;
use leasehold_proto::v1::hold_response::Message as Response;
use leasehold_tests::client::{
    stream::StreamClient,
    unary::{AcquireCall, Client},
};

const HEARTBEATS_PER_TTL: u32 = 3;

#[derive(Debug, Parser)]
struct Args {
    /// Address of the broker
    #[arg(long, default_value = "127.0.0.1:7070")]
    endpoint: SocketAddr,
    /// TTL of the locks
    #[arg(long, default_value_t = 10_000)]
    ttl_ms: u64,
    /// Time after a break of the stream at which the locks are released
    #[arg(long)]
    disconnect_grace_ms: Option<u64>,
    /// Names of the locks
    #[arg(required = true)]
    locks: Vec<String>,
}

#[tokio::main]
async fn main() {
    let args = Args::parse();
    let ttl = Duration::from_millis(args.ttl_ms);
    let grace = args.disconnect_grace_ms.map(Duration::from_millis);
    let mut stream = StreamClient::open(args.endpoint).await;
    stream.start_heartbeats(ttl / HEARTBEATS_PER_TTL);
    let client = Client::new(&format!("holder-{}", std::process::id()), &[], 0);
    for lock in &args.locks {
        let mut request = client.acquire_request(&AcquireCall::new(lock, ttl, Duration::ZERO));
        request.disconnect_grace = grace.map(|grace| grace.try_into().expect("a short time"));
        let call = stream.send_acquire(request, 1).await;
        stream.wait_for_grant(call).await.expect("the stream lives");
    }
    println!("held");
    while let Some(response) = stream.next_lease_message().await {
        assert!(matches!(response, Response::Ack(_)), "lost: {response:?}");
    }
    panic!("the stream is over");
}
