//! Random sequences of commands against the specification and against the scripts, which must give
//! the same answers.

pub mod generator;
pub mod machine;
pub mod mutants;
pub mod pipeline;
pub mod steps;
pub mod tally;

use std::fmt;

use leasehold_server::store::{Ending, memory::record::Record};

use self::{
    generator::Generator,
    machine::Machine,
    steps::{Answer, Step},
    tally::{Tally, Watch},
};

/// Steps of one sequence.
pub const STEPS: usize = 60;

/// The answer to a command, and the leases whose time it found to be over.
pub type Told = (Answer, Vec<Ending>);

/// A step to which the scripts do not answer like the specification.
pub struct Difference {
    seed: u64,
    steps: Vec<(Step, Told)>,
    told: Told,
}

/// Runs the sequence of a seed on both; the first difference ends it.
///
/// # Panics
/// If the scripts leave a record without a time to live.
pub fn compare(seed: u64, machine: &mut Machine, tally: &mut Tally) -> Option<Difference> {
    let mut steps = sequence(seed, tally);
    let (told, pttl) = machine.run(steps.iter().map(|(step, _)| step));
    let differs = |(expected, told): (&(Step, Told), &Told)| expected.1 != *told;
    let Some(at) = steps.iter().zip(&told).position(differs) else {
        assert!(
            pttl == -2 || pttl > 0,
            "seed {seed} leaves a record with PTTL {pttl}"
        );
        return None;
    };
    steps.truncate(at + 1);
    let told = told[at].clone();
    Some(Difference { seed, steps, told })
}

/// The steps of a seed, and what the specification answers to each.
fn sequence(seed: u64, tally: &mut Tally) -> Vec<(Step, Told)> {
    let mut generator = Generator::new(seed);
    let mut record = Record::default();
    let mut watch = Watch::default();
    let mut steps = Vec::with_capacity(STEPS);
    for _ in 0..STEPS {
        let step = generator.step();
        let before = record.get(step.now_us);
        let answer = step.apply(&mut record);
        let after = record.get(step.now_us);
        tally.count(&mut watch, &step, &answer, [&before, &after]);
        generator.learn(&step, &answer);
        let endings = std::mem::take(&mut record.endings);
        tally.count_endings(&endings);
        steps.push((step, (answer, endings)));
    }
    steps
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}:", self.seed)?;
        for (step, told) in &self.steps {
            let Step {
                now_us,
                broker,
                era,
                ..
            } = step;
            let late = if step.not_after_ms < now_us / 1_000 {
                " late"
            } else {
                ""
            };
            writeln!(
                f,
                "{now_us} {broker} {era:?}{late} {:?}\n    {told:?}",
                step.verb
            )?;
        }
        writeln!(f, "the scripts answered {:?}", self.told)
    }
}
