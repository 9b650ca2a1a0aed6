//! Writes the results into the docs.

use std::{fs, io};

use leasehold_tests::repository::paths::repository_root;

use super::{
    Peers,
    aims::CALLERS,
    plot::{Bar, chart},
    table::{median_of, ran},
};

const PAGE: &str = "docs/benchmarks.md";
const BEGIN: &str = "<!-- measured -->\n";
const END: &str = "<!-- /measured -->\n";

impl Peers {
    /// Writes the tables between the markers of the page, and the charts.
    pub(super) fn write(&self) -> io::Result<()> {
        let page = repository_root().join(PAGE);
        let text = fs::read_to_string(&page)?;
        let marks = text.split_once(BEGIN);
        let marks = marks.and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, after) = marks.ok_or_else(|| io::Error::other("the page lost its marks"))?;
        fs::write(page, format!("{before}{BEGIN}\n{self}\n{END}{after}"))?;
        let images = repository_root().join("docs/images");
        let title = format!("Pairs of Acquire and Release a second, {CALLERS} callers");
        let pairs = chart(&title, &self.bars(&self.pairs, CALLERS));
        fs::write(images.join("bench-pairs.svg"), pairs)?;
        for (waiters, _) in self.hot.keys().filter(|(waiters, _)| *waiters > CALLERS) {
            let title = format!("Hand-offs a second of one lock, {waiters} waiters");
            let hot = chart(&title, &self.bars(&self.hot, *waiters));
            fs::write(images.join(format!("bench-hot-{waiters}.svg")), hot)?;
        }
        Ok(())
    }

    fn bars(&self, of: &super::Rounds, count: usize) -> Vec<Bar> {
        let those = of.iter().filter(|((many, _), _)| *many == count);
        let bars = those.map(|((_, system), rounds)| Bar {
            name: system.name().to_owned(),
            figure: ran(rounds).map_or(0.0, |all| median_of(&all, |run| self.per_second(run))),
            is_ours: system.is_ours(),
        });
        bars.collect()
    }
}
