//! Random sequences of commands, executed by the specification and by the scripts, which must
//! return equal replies.

pub mod generator;
pub mod mutants;
pub mod outcome_counts;
pub mod pipeline;
pub mod script_runner;
pub mod steps;

use std::fmt;

use leasehold_server::store::{LeaseEndEvent, memory::record::Record};

use self::{
    generator::Generator,
    outcome_counts::{OutcomeCounts, SequenceState},
    script_runner::ScriptRunner,
    steps::{Step, StoreReply},
};

/// Number of steps of a sequence.
pub const STEPS: usize = 60;

/// The reply to a command, and the leases whose expiry the command found.
pub type StepResult = (StoreReply, Vec<LeaseEndEvent>);

/// A step to which the scripts reply differently than the specification.
pub struct Difference {
    seed: u64,
    steps: Vec<(Step, StepResult)>,
    actual: StepResult,
}

/// Runs the sequence of a seed on both sides until the first difference. After the last step the
/// records must have a time to live on both sides or on neither.
pub fn compare(
    seed: u64,
    machine: &mut ScriptRunner,
    tally: &mut OutcomeCounts,
) -> Option<Difference> {
    let (mut steps, specified) = specified_sequence(seed, tally);
    let (result, record) = machine.run(steps.iter().map(|(step, _)| step));
    let differs = |(expected, result): (&(Step, StepResult), &StepResult)| expected.1 != *result;
    let Some(at) = steps.iter().zip(&result).position(differs) else {
        let is_kept = specified.deleted_after_ms(0).is_none();
        let subscribers = specified.release_subscribers().iter();
        let subscribers: String = subscribers.map(ToString::to_string).collect();
        let actual = if (record.pttl_ms == -1) != is_kept {
            format!("a record with PTTL {}", record.pttl_ms)
        } else if record.release_subscribers != subscribers {
            format!("release subscribers {:?}", record.release_subscribers)
        } else {
            return None;
        };
        return Some(Difference {
            seed,
            steps,
            actual: (StoreReply::Failed(actual), Vec::new()),
        });
    };
    steps.truncate(at + 1);
    let result = result[at].clone();
    Some(Difference {
        seed,
        steps,
        actual: result,
    })
}

/// Returns the steps of a seed, with the reply of the specification to each, and the record after
/// them.
fn specified_sequence(seed: u64, tally: &mut OutcomeCounts) -> (Vec<(Step, StepResult)>, Record) {
    let mut generator = Generator::new(seed);
    let mut record = Record::default();
    let mut watch = SequenceState::default();
    let mut steps = Vec::with_capacity(STEPS);
    for _ in 0..STEPS {
        let step = generator.step();
        let before = record.get(step.now_us);
        let answer = step.execute(&mut record);
        let after = record.get(step.now_us);
        tally.count(&mut watch, &step, &answer, [&before, &after]);
        generator.observe(&step, &answer);
        let endings = std::mem::take(&mut record.end_events);
        tally.count_lease_ends(&endings);
        steps.push((step, (answer, endings)));
    }
    (steps, record)
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}:", self.seed)?;
        for (step, result) in &self.steps {
            let Step {
                now_us,
                broker,
                era,
                span_limit,
                token_floor,
                ..
            } = step;
            let late = if step.not_after_ms < now_us / 1_000 {
                " late"
            } else {
                ""
            };
            writeln!(
                f,
                "{now_us} {broker} {era:?} {span_limit:?} {token_floor:?}{late} {:?}\n    {result:?}",
                step.verb
            )?;
        }
        writeln!(f, "the scripts answered {:?}", self.actual)
    }
}
