//! A flash sale: many buyers in several languages, few items, and a stock that can only be read and
//! written back.

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use futures::future::join_all;
use tokio::time::sleep;

use super::{language::Cast, messages::ProbeAcquire, probe::Probe, scenario::ScenarioFixture};
use crate::{
    clock::boottime,
    scale::{print_figures, scaled_count},
};

const ITEMS: u64 = 10;
const WAIT: Duration = Duration::from_secs(60);
/// Time between reading the stock and writing it back.
const SHOP_WORK: Duration = Duration::from_millis(1);

/// The stock, and the largest token that the shop has received.
#[derive(Debug)]
struct Shop {
    stock: AtomicU64,
    highest_token: AtomicI64,
}

impl Shop {
    fn open() -> Self {
        Self {
            stock: AtomicU64::new(ITEMS),
            highest_token: AtomicI64::new(0),
        }
    }

    /// Returns true if an item was left. Two concurrent calls sell the same item.
    async fn buy(&self) -> bool {
        let stock_before = self.stock.load(Ordering::SeqCst);
        sleep(SHOP_WORK).await;
        if stock_before > 0 {
            self.stock.store(stock_before - 1, Ordering::SeqCst);
        }
        stock_before > 0
    }

    async fn buy_locked(&self, probe: &Probe, buyer: usize) -> bool {
        let name = format!("buyer-{buyer}");
        let ask = ProbeAcquire::exclusive("stock")
            .with_lease_name(&name)
            .with_wait(WAIT);
        let lease = probe.expect_acquired(&ask).await;
        let newest = self.highest_token.swap(lease.token(), Ordering::SeqCst);
        assert!(newest < lease.token(), "not its turn: {lease:?}");
        let has_bought = self.buy().await;
        probe.expect_released(&name).await;
        has_bought
    }
}

/// With the lock, exactly the stock is sold to buyers of two languages. Without it, more is sold.
pub async fn a_crowd_buys_exactly_the_stock(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 2).await;
    let probes = [
        fixture.start_tested_probe().await,
        fixture.start_other_probe().await,
    ];
    sell_to(&probes, &format!("{:?} and {:?}", cast.one, cast.other)).await;
}

/// Runs a sale to buyers that use these probes in turn. `who` labels the printed figures.
pub async fn sell_to(probes: &[Probe], who: &str) {
    let buyers = scaled_count(1_000, 100);
    let sold = |bought: Vec<bool>| bought.into_iter().filter(|bought| *bought).count();
    let open = Shop::open();
    let oversold = sold(join_all((0..buyers).map(|_| open.buy())).await);
    let shop = Shop::open();
    let started_at = boottime();
    let crowd = (0..buyers).map(|buyer| shop.buy_locked(&probes[buyer % probes.len()], buyer));
    let sold = sold(join_all(crowd).await);
    let stock_before = shop.stock.load(Ordering::SeqCst);
    print_figures(&format!(
        "suite {who}: buyers={buyers} items={ITEMS} sold={sold} left={stock_before} without_the_lock={oversold} took={}ms",
        (boottime() - started_at).as_millis()
    ));
    assert_eq!((sold as u64, stock_before), (ITEMS, 0));
    assert!(oversold as u64 > ITEMS, "the sale must need a lock");
}
