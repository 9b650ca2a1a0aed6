//! Writes the results into the docs.

use std::io;

use super::{
    Peers,
    plot::{Panel, chart},
    summary::{CALLERS, KEPT, Summary, WAITERS},
};
use crate::{
    pages::{write_block, write_image},
    report::thousands,
};

const PAGE: &str = "docs/benchmarks.md";

impl Peers {
    /// Writes the first sentences, the charts and the tables of the page.
    pub(super) fn write(&self) -> io::Result<()> {
        self.summary().write()?;
        write_block(PAGE, "measured", &self.to_string())
    }
}

impl Summary {
    fn write(&self) -> io::Result<()> {
        write_block(PAGE, "summary", &self.to_string())?;
        for (name, svg) in self.charts() {
            write_image(name, &svg)?;
        }
        Ok(())
    }

    /// Returns the charts by their file names.
    fn charts(&self) -> [(&'static str, String); 3] {
        let panel = |title, figures, digits| Panel {
            title,
            figures,
            digits,
        };
        let throughput = format!("{CALLERS} callers: pairs/s (more is better)");
        let calls = [
            panel(
                "One caller: p50 of a pair in ms (less is better)",
                &self.p50_ms,
                3,
            ),
            panel(&throughput, &self.pairs, 0),
        ];
        let hot = [
            panel("Jain's index (1 is fair)", &self.jain, 3),
            panel("Hand-offs/s", &self.hand_offs, 0),
        ];
        let hot_title = format!("One lock with {} waiters", thousands(WAITERS as f64));
        let kept_title = format!("{} kept leases with a ttl of 10 s", thousands(KEPT as f64));
        let cores = "Cores of servers and client (less is better)";
        [
            (
                "bench-calls.svg",
                chart(
                    "Acquire and release a lock that no other caller uses",
                    &calls,
                ),
            ),
            ("bench-hot-lock.svg", chart(&hot_title, &hot)),
            (
                "bench-kept.svg",
                chart(&kept_title, &[panel(cores, &self.kept_cores, 2)]),
            ),
        ]
    }
}
