//! Random sequences of commands, executed by the specification and by the scripts, which must
//! return equal replies.

pub mod generator;
pub mod mutants;
pub mod outcome_counts;
pub mod pipeline;
pub mod script_runner;
pub mod steps;

use std::fmt;

use leasehold_server::{
    lock::IDLE_RECORD_TTL_MS,
    store::{LeaseEndEvent, memory::record::Record},
};

use self::{
    generator::Generator,
    outcome_counts::{OutcomeCounts, SequenceState},
    script_runner::{FinalRecord, ScriptRunner},
    steps::{Step, StoreReply},
};

/// Least time to live of a record, read shortly after the last command.
const PTTL_MIN_MS: i64 = IDLE_RECORD_TTL_MS as i64 / 2;

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

/// The steps of a seed, as the specification executes them.
pub struct SpecifiedSequence {
    seed: u64,
    /// The steps, with the reply of the specification to each.
    steps: Vec<(Step, StepResult)>,
    /// The record after the steps.
    record: Record,
}

impl SpecifiedSequence {
    /// Executes the steps of a seed and counts their outcomes.
    pub fn new(seed: u64, tally: &mut OutcomeCounts) -> Self {
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
        Self {
            seed,
            steps,
            record,
        }
    }

    /// Runs the steps on the scripts, and returns the record after them. After the last step the
    /// records must have a time to live on both sides or on neither, which is not short, and name
    /// the same brokers to notify.
    ///
    /// # Errors
    /// The first difference.
    pub fn run_on(&self, machine: &mut ScriptRunner) -> Result<FinalRecord, Box<Difference>> {
        let (result, record) = machine.run(self.steps.iter().map(|(step, _)| step));
        let differs =
            |(expected, result): (&(Step, StepResult), &StepResult)| expected.1 != *result;
        if let Some(at) = self.steps.iter().zip(&result).position(differs) {
            return Err(self.difference_at(at, result[at].clone()));
        }
        let is_kept = self.record.deleted_after_ms(0).is_none();
        let subscribers = self.record.release_subscribers().iter();
        let subscribers: String = subscribers.map(ToString::to_string).collect();
        let actual_subscribers = record.fields.get("n").map_or("", String::as_str);
        let is_deleted_early = record.pttl_ms >= 0 && record.pttl_ms < PTTL_MIN_MS;
        let actual = if (record.pttl_ms == -1) != is_kept || is_deleted_early {
            format!("a record with PTTL {}", record.pttl_ms)
        } else if actual_subscribers != subscribers {
            format!("release subscribers {actual_subscribers:?}")
        } else {
            return Ok(record);
        };
        let actual = (StoreReply::Failed(actual), Vec::new());
        Err(self.difference_at(self.steps.len() - 1, actual))
    }

    fn difference_at(&self, at: usize, actual: StepResult) -> Box<Difference> {
        Box::new(Difference {
            seed: self.seed,
            steps: self.steps[..=at].to_vec(),
            actual,
        })
    }
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
