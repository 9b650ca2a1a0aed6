//! The kept counts, and the comparison with measured counts.
//!
//! A change that makes a count larger or smaller by more than 5 % fails the gate. If the change
//! reduces the count, or is worth its cost, replace the row by the one that the failure prints.

use leasehold_tests::scale::print_figures;

/// Largest relative difference between a count and its kept number.
const DIFFERENCE_MAX: f64 = 0.05;
/// Largest relative difference of a count of another build of the counted program, relative to a
/// reference. Those of a snapshot of Valkey after 8.0 are up to 15 %.
const RELATIVE_DIFFERENCE_MAX: f64 = 0.2;
const FILE: &str = "tests/tests/counts/kept.rs";

/// A measured count.
#[derive(Debug, Clone)]
pub(crate) struct Count {
    pub(crate) name: String,
    pub(crate) number: f64,
}

#[derive(Debug, Clone, Copy)]
struct KeptCount {
    name: &'static str,
    number: f64,
}

/// Kept counts with the same unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeptCounts {
    unit: &'static str,
    counts: &'static [KeptCount],
}

/// A count beside a kept number that it does not match.
#[derive(Debug)]
struct Difference {
    count: Count,
    /// Ratio to the kept number, or `None` if there is none.
    ratio: Option<f64>,
}

const fn count(name: &'static str, number: f64) -> KeptCount {
    KeptCount { name, number }
}

/// Commands that brokers send to Redis, and commands that their scripts call there.
pub(crate) const COMMANDS: KeptCounts = KeptCounts {
    unit: "Redis commands per call",
    counts: &[
        count("acquire, sent", 1.0),
        count("acquire, called", 5.0),
        count("renew, sent", 1.0),
        count("renew, called", 4.0),
        count("attach, sent", 1.0),
        count("attach, called", 4.0),
        count("release, sent", 1.0),
        count("release, called", 4.0),
    ],
};

/// Server whose instructions are kept.
pub(crate) const REDIS_BUILD: &str = "Redis 7.0.15 on x86_64";

/// Instructions of Redis for a lock, with one lock and with 16 locks per run of a script.
pub(crate) const INSTRUCTIONS: KeptCounts = KeptCounts {
    unit: "instructions per lock",
    counts: &[
        count("reference script", 126300.0),
        count("acquire, 1 per run", 143200.0),
        count("renew, 1 per run", 128400.0),
        count("attach, 1 per run", 126600.0),
        count("release, 1 per run", 120100.0),
        count("acquire, 16 per run", 76900.0),
        count("renew, 16 per run", 86600.0),
        count("attach, 16 per run", 79000.0),
        count("release, 16 per run", 77200.0),
    ],
};

/// Allocations of the broker and its client together.
pub(crate) const ALLOCATIONS: KeptCounts = KeptCounts {
    unit: "allocations",
    counts: &[
        count("pair of unary calls", 269.16),
        count("pair on a lease stream", 83.14),
    ],
};

impl KeptCounts {
    /// Prints each count, its kept number and their ratio. Fails if a count differs from its kept
    /// number by more than 5 %, and says the row to keep instead.
    pub(crate) fn compare(&self, measured: &[Count]) {
        let wrong = self.differences(measured, DIFFERENCE_MAX);
        let rows = wrong.iter().map(|difference| {
            let Difference { count, ratio } = difference;
            let advice = match ratio {
                Some(ratio) if *ratio > 1.0 => {
                    format!("costs more ({ratio:.3}). If it must, write")
                }
                Some(ratio) => format!("costs less ({ratio:.3}). Lower it"),
                None => "is new. Add".to_owned(),
            };
            let Count { name, number } = count;
            format!("{name} {advice}: count({name:?}, {:?}),", round(*number))
        });
        let rows: Vec<_> = rows.collect();
        assert!(
            rows.is_empty(),
            "{}, kept in {FILE}:\n{}",
            self.unit,
            rows.join("\n")
        );
    }

    /// Compares counts of another build of the same program: relative to those of `reference`, and
    /// with a wider tolerance. Such counts cannot be kept.
    pub(crate) fn compare_relative(&self, reference: &str, measured: &[Count]) {
        let kept = self.number(reference).expect("the reference is kept");
        let is_reference = |count: &&Count| count.name == reference;
        let reference = measured.iter().find(is_reference);
        let factor = kept / reference.expect("the reference is measured").number;
        let measured = measured.iter().map(|count| Count {
            name: count.name.clone(),
            number: count.number * factor,
        });
        let wrong = self.differences(&measured.collect::<Vec<_>>(), RELATIVE_DIFFERENCE_MAX);
        assert!(
            wrong.is_empty(),
            "{}, times {factor:.3}: {wrong:?}",
            self.unit
        );
    }

    /// Prints the counts, and returns those that are not kept or differ from their kept number by
    /// more than `difference_max`. Fails if a kept count was not measured.
    fn differences(&self, measured: &[Count], difference_max: f64) -> Vec<Difference> {
        let mut differences = Vec::new();
        for count in measured {
            let Count { name, number } = count;
            let ratio = self.number(name).map(|kept| {
                let ratio = number / kept;
                let unit = self.unit;
                print_figures(&format!(
                    "counts: {name}: {number:.2} {unit}, kept {kept:.2}, ratio {ratio:.3}"
                ));
                ratio
            });
            if ratio.is_none_or(|ratio| (ratio - 1.0).abs() > difference_max) {
                let count = count.clone();
                differences.push(Difference { count, ratio });
            }
        }
        let is_measured = |kept: &&KeptCount| measured.iter().any(|count| count.name == kept.name);
        let unmeasured = self.counts.iter().find(|kept| !is_measured(kept));
        assert!(
            unmeasured.is_none(),
            "not measured, delete it in {FILE}: {unmeasured:?}"
        );
        differences
    }

    fn number(&self, name: &str) -> Option<f64> {
        let count = self.counts.iter().find(|count| count.name == name);
        count.map(|count| count.number)
    }
}

fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}
