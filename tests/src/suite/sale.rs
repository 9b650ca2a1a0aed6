//! A flash sale: a crowd of buyers in several languages, few items, and a stock that can only be read and
//! written back.

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use futures::future::join_all;
use tokio::time::sleep;

use super::{language::Cast, probe::Probe, scene::Scene, wire::Ask};
use crate::{
    clock::boottime,
    scale::{count, figures},
};

const ITEMS: u64 = 10;
const WAIT: Duration = Duration::from_secs(60);
/// Between a look at the stock and its new figure.
const SHOP_WORK: Duration = Duration::from_millis(1);

/// What is sold, and the newest token that the shop has seen.
#[derive(Debug)]
struct Shop {
    stock: AtomicU64,
    newest: AtomicI64,
}

impl Shop {
    fn open() -> Self {
        Self {
            stock: AtomicU64::new(ITEMS),
            newest: AtomicI64::new(0),
        }
    }

    /// Whether there was one to buy. Two at the same time buy the same one.
    async fn buy(&self) -> bool {
        let left = self.stock.load(Ordering::SeqCst);
        sleep(SHOP_WORK).await;
        if left > 0 {
            self.stock.store(left - 1, Ordering::SeqCst);
        }
        left > 0
    }

    async fn buy_locked(&self, probe: &Probe, buyer: usize) -> bool {
        let name = format!("buyer-{buyer}");
        let ask = Ask::one("stock").called(&name).wait(WAIT);
        let lease = probe.takes(&ask).await;
        let newest = self.newest.swap(lease.token(), Ordering::SeqCst);
        assert!(newest < lease.token(), "not its turn: {lease:?}");
        let has_bought = self.buy().await;
        probe.gives(&name).await;
        has_bought
    }
}

/// Under the lock exactly the stock is sold, to buyers of two languages; without it more than that.
pub async fn a_crowd_buys_exactly_the_stock(cast: Cast) {
    let scene = Scene::start(cast, 2).await;
    let probes = [scene.one().await, scene.other().await];
    sell_to(&probes, &format!("{:?} and {:?}", cast.one, cast.other)).await;
}

/// A sale to a crowd that buys by these probes in turn. `who` is for the figures.
pub async fn sell_to(probes: &[Probe], who: &str) {
    let buyers = count(1_000, 100);
    let sold = |bought: Vec<bool>| bought.into_iter().filter(|bought| *bought).count();
    let open = Shop::open();
    let oversold = sold(join_all((0..buyers).map(|_| open.buy())).await);
    let shop = Shop::open();
    let begun = boottime();
    let crowd = (0..buyers).map(|buyer| shop.buy_locked(&probes[buyer % probes.len()], buyer));
    let sold = sold(join_all(crowd).await);
    let left = shop.stock.load(Ordering::SeqCst);
    figures(&format!(
        "suite {who}: buyers={buyers} items={ITEMS} sold={sold} left={left} without_the_lock={oversold} took={}ms",
        (boottime() - begun).as_millis()
    ));
    assert_eq!((sold as u64, left), (ITEMS, 0));
    assert!(oversold as u64 > ITEMS, "the sale must need a lock");
}
