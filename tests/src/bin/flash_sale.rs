//! A flash sale: many buyers in several processes, few items, and a stock that can only be read and
//! written back. The lock prevents overselling.
//!
//! `cargo run -p leasehold-tests --bin flash_sale -- --endpoint 127.0.0.1:7070` (`--no-lock` to see
//! it oversell), with a broker at that address.

#![expect(clippy::print_stdout, reason = "an example talks to the terminal")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use futures::future::join_all;
use leasehold_tests::client::unary::{AcquireCall, Client};
use leasehold_tests::process::temp_dir::TempDir;
use leasehold_tests::process::worker_processes::{run_workers, wait_for_start};
use tonic::Status;

const LOCK: &str = "flash-sale/stock";
const TTL: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(240);
const SHOP_WORK: Duration = Duration::from_millis(1);
const CONNECTIONS: usize = 4;

#[derive(Debug, Clone, Parser)]
struct Args {
    /// Address of the broker
    #[arg(long, default_value = "127.0.0.1:7070")]
    endpoint: SocketAddr,
    /// Items in stock.
    #[arg(long, default_value_t = 10)]
    items: u64,
    /// Buyers in all.
    #[arg(long, default_value_t = 2000)]
    buyers: usize,
    /// Processes among which the buyers are spread.
    #[arg(long, default_value_t = 4)]
    processes: usize,
    /// Buy without the lock.
    #[arg(long)]
    no_lock: bool,
    /// Be one of the processes, on this stock file.
    #[arg(long, hide = true)]
    stock: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<(), Status> {
    let args = Args::parse();
    match args.stock.clone() {
        Some(stock) => {
            wait_for_start();
            let sold = serve_buyers(&args, &stock).await?;
            println!("{sold}");
        }
        None => run_sale(&args).await,
    }
    Ok(())
}

async fn run_sale(args: &Args) {
    let dir = TempDir::new("flash-sale");
    let stock = dir.path().join("stock");
    write_stock(&stock, args.items);
    let worker = |index: usize| {
        let share =
            args.buyers / args.processes + usize::from(index < args.buyers % args.processes);
        let mut words = vec![
            format!("--endpoint={}", args.endpoint),
            format!("--buyers={share}"),
            format!("--stock={}", stock.display()),
        ];
        words.extend(args.no_lock.then(|| "--no-lock".to_owned()));
        words
    };
    let outputs = run_workers((0..args.processes).map(worker)).await;
    let counts = outputs
        .iter()
        .map(|text| text.parse::<u64>().expect("a worker prints a count"));
    let (sold, left) = (counts.sum::<u64>(), read_stock(&stock));
    println!(
        "items={} buyers={} sold={sold} left={left}",
        args.items, args.buyers
    );
}

async fn serve_buyers(args: &Args, stock: &Path) -> Result<usize, Status> {
    let client = &Client::new("buyer", &[args.endpoint; CONNECTIONS], 0);
    let buyers = (0..args.buyers).map(|index| async move {
        if args.no_lock {
            Ok(buy(stock).await)
        } else {
            buy_locked(client, index, stock).await
        }
    });
    let bought = join_all(buyers)
        .await
        .into_iter()
        .collect::<Result<Vec<bool>, Status>>()?;
    Ok(bought.into_iter().filter(|bought| *bought).count())
}

async fn buy_locked(client: &Client, index: usize, stock: &Path) -> Result<bool, Status> {
    let buyer = client.with_name(&format!("buyer-{}-{index}", std::process::id()), index);
    let held = buyer
        .acquire(&AcquireCall::new(LOCK, TTL, PATIENCE))
        .await?;
    let bought = buy(stock).await;
    buyer.release(&held).await?;
    Ok(bought)
}

async fn buy(stock: &Path) -> bool {
    let left = read_stock(stock);
    tokio::time::sleep(SHOP_WORK).await;
    if left > 0 {
        write_stock(stock, left - 1);
    }
    left > 0
}

fn read_stock(stock: &Path) -> u64 {
    // An unlocked writer may have emptied the file a moment ago: then nothing is left.
    std::fs::read_to_string(stock)
        .expect("read the stock")
        .trim()
        .parse()
        .unwrap_or(0)
}

fn write_stock(stock: &Path, left: u64) {
    std::fs::write(stock, left.to_string()).expect("write the stock");
}
