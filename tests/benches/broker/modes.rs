//! Cost of each mode of locks, and of other holders of the same lock.

use std::{collections::BTreeMap, fmt, net::SocketAddr};

use leasehold_proto::v1::{LockMode, LockTarget, lock_service_client::LockServiceClient};
use leasehold_tests::client::unary::channel;
use uuid::Uuid;

use crate::{
    grpc::{acquire, lock_name, named, pairs_on, release},
    pairs::Sample,
    report::{median, ms},
};

const CALLERS: usize = 64;
/// Number of callers on the same lock.
const OTHER_CALLERS: usize = 16;
/// Numbers of additional holders. The last one and the callers are the 1,000 holders that a lock
/// allows.
const HOLDERS: [usize; 3] = [10, 100, 1_000 - OTHER_CALLERS];

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    /// Each caller uses its own lock.
    Own(Kind),
    /// All callers use one lock, which the given number of other holders hold as well.
    Beside(Kind, usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Exclusive,
    Shared,
    Semaphore,
}

/// Results of the rounds, displayed as a table.
#[derive(Default)]
pub(crate) struct Modes(BTreeMap<Row, Vec<Sample>>);

impl Kind {
    fn target(self, name: &str) -> LockTarget {
        let (mode, permits, limit) = match self {
            Self::Exclusive => (LockMode::Exclusive, 0, 0),
            Self::Shared => (LockMode::Shared, 0, 0),
            Self::Semaphore => (LockMode::Semaphore, 1, 1_000),
        };
        LockTarget {
            mode: mode.into(),
            permits,
            limit,
            ..named(name)
        }
    }
}

impl Modes {
    /// Runs one more round at the broker at `addr`.
    pub(crate) async fn round(&mut self, addr: SocketAddr) {
        for kind in [Kind::Exclusive, Kind::Shared, Kind::Semaphore] {
            let target = |at| kind.target(&lock_name(at));
            let sample = pairs_on(addr, CALLERS, target).await;
            self.0.entry(Row::Own(kind)).or_default().push(sample);
        }
        for kind in [Kind::Shared, Kind::Semaphore] {
            for holders in HOLDERS {
                let sample = beside(addr, kind, holders).await;
                let row = Row::Beside(kind, holders);
                self.0.entry(row).or_default().push(sample);
            }
        }
    }

    fn middle(&self, row: Row) -> Sample {
        median(&self.0[&row])
    }
}

/// Runs pairs of [`BESIDE`] callers on one lock that `holders` hold all the time.
async fn beside(addr: SocketAddr, kind: Kind, holders: usize) -> Sample {
    let target = kind.target(&format!("bench/beside/{}", Uuid::new_v4()));
    let mut locks = LockServiceClient::new(channel(addr));
    let mut held = Vec::new();
    for _ in 0..holders {
        held.push(acquire(&mut locks, &target).await);
    }
    let sample = pairs_on(addr, OTHER_CALLERS, |_| target.clone()).await;
    for lease in held {
        release(&mut locks, lease).await;
    }
    sample
}

impl fmt::Display for Modes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (title, against) = ("kinds of locks, broker on Redis", "÷ excl. or fewest");
        writeln!(
            f,
            "| {title:47} | callers |    per s |  p50 ms |  p99 ms | {against} |\n\
             |---|--:|--:|--:|--:|--:|"
        )?;
        for row in self.0.keys() {
            let sample = self.middle(*row);
            let (name, callers, base) = match row {
                Row::Own(kind) => (
                    format!("pairs: {kind:?}"),
                    CALLERS,
                    self.middle(Row::Own(Kind::Exclusive)),
                ),
                Row::Beside(kind, holders) => (
                    format!("pairs: {kind:?} beside {holders} holders"),
                    OTHER_CALLERS,
                    self.middle(Row::Beside(*kind, HOLDERS[0])),
                ),
            };
            let ratio = sample.per_second / base.per_second;
            writeln!(
                f,
                "| {name:47} | {callers:>7} | {:>8.0} | {:>7} | {:>7} | {ratio:>17.2} |",
                sample.per_second,
                ms(sample.p50),
                ms(sample.p99)
            )?;
        }
        Ok(())
    }
}
