//! Histories of the model on the scripts: every command of a history must have the reply that the
//! specification gave, so that the scripts have the same properties.

use std::net::SocketAddr;

use fred::types::Value;
use leasehold_server::lock::LockKey;

use super::{
    keys::lock_key,
    random::LOW_BOUNDS,
    store::{JournalEntry, ModelStep, SAVES_MAX},
};
use crate::differential::{
    StepResult,
    script_runner::{
        KeyForm, PlainCases, SLOT_TAG, ScriptCall, ScriptRunner, decode_reply, decode_single_reply,
        twin_key,
    },
};

/// Form in which the scripts run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreForm {
    /// One server, with one era.
    Node,
    /// A cluster, with an era for each slot.
    Cluster,
}

/// Runs histories on the scripts.
pub struct ScriptReplay {
    runner: ScriptRunner,
    form: StoreForm,
    locks: Vec<LockKey>,
}

/// A command to which the scripts reply differently than the specification.
#[derive(Debug)]
pub struct ReplyDifference {
    /// Index of the command in the journal.
    pub at: usize,
    pub step: ModelStep,
    pub expected: StepResult,
    pub actual: StepResult,
}

impl ScriptReplay {
    /// Loads the scripts into a server after `edit`, which may introduce mistakes.
    pub fn new(addr: SocketAddr, form: StoreForm, edit: impl Fn(&str) -> String) -> Self {
        Self {
            runner: ScriptRunner::new(addr, LOW_BOUNDS, PlainCases::Apart, edit),
            form,
            locks: (0..2).map(lock_key).collect(),
        }
    }

    /// Runs what the store of the model executed. Returns the first difference.
    pub fn run(&mut self, journal: &[JournalEntry]) -> Option<ReplyDifference> {
        let prefix = self.runner.pipeline().1.to_owned();
        let records: Vec<_> = self
            .locks
            .iter()
            .map(|lock| format!("{prefix}{}", lock.encoded()))
            .collect();
        let era_key = match self.form {
            StoreForm::Node => format!("{prefix}era"),
            StoreForm::Cluster => format!("{prefix}era{SLOT_TAG}"),
        };
        let mut saves = 1;
        self.push(&["SET", &era_key, "era0|0|"]);
        for entry in journal {
            match entry {
                JournalEntry::Step(step, _) => self.push_step(step, &era_key),
                JournalEntry::Save => {
                    if saves == SAVES_MAX {
                        for save in 1..SAVES_MAX {
                            self.copy_all(&records, Some(save), Some(save - 1));
                        }
                        saves -= 1;
                    }
                    self.copy_all(&records, None, Some(saves));
                    saves += 1;
                }
                JournalEntry::RollBack {
                    save,
                    era,
                    no_grants_before_ms,
                } => {
                    self.copy_all(&records, Some(*save), None);
                    let value = format!("era{era}|{no_grants_before_ms}|");
                    self.push(&["SET", &era_key, &value]);
                }
            }
        }
        for record in &records {
            for copy in [None, Some(0), Some(1), Some(2)] {
                let key = copy_key(record, copy);
                self.push(&["DEL", &key, &twin_key(&key)]);
            }
        }
        let replies = self.runner.pipeline().0.replies();
        self.first_difference(journal, replies)
    }

    fn first_difference(
        &self,
        journal: &[JournalEntry],
        replies: Vec<Value>,
    ) -> Option<ReplyDifference> {
        let mut of_commands = replies.into_iter().filter(is_reply_of_command);
        for (at, entry) in journal.iter().enumerate() {
            let JournalEntry::Step(step, expected) = entry else {
                continue;
            };
            let reply = of_commands.next().expect("a reply for each command");
            let decode = match self.form {
                StoreForm::Node => decode_reply,
                StoreForm::Cluster => decode_single_reply,
            };
            let lock = &self.locks[usize::from(step.lock)];
            let actual = decode(step.broker, lock, &step.command, reply);
            if actual != **expected {
                return Some(ReplyDifference {
                    at,
                    step: (**step).clone(),
                    expected: (**expected).clone(),
                    actual,
                });
            }
        }
        None
    }

    fn push_step(&mut self, step: &ModelStep, era_key: &str) {
        let era_id = format!("era{}", step.era);
        let call = ScriptCall {
            now_us: step.now_us,
            lock: &self.locks[usize::from(step.lock)],
            broker: step.broker,
            not_after_ms: step.not_after_ms,
            era_id: &era_id,
            notifies_release: false,
            command: &step.command,
        };
        let form = match self.form {
            StoreForm::Node => KeyForm::Node { era_key },
            StoreForm::Cluster => KeyForm::Cluster,
        };
        self.runner.push(&call, form);
    }

    /// Copies the records and their twins from one snapshot to another; `None` is the current data.
    fn copy_all(&mut self, records: &[String], from: Option<usize>, to: Option<usize>) {
        for record in records {
            let (from, to) = (copy_key(record, from), copy_key(record, to));
            for (from, to) in [(from.clone(), to.clone()), (twin_key(&from), twin_key(&to))] {
                // COPY does not replace a key by one that does not exist.
                self.push(&["DEL", &to]);
                self.push(&["COPY", &from, &to, "REPLACE"]);
            }
        }
    }

    fn push(&mut self, words: &[&str]) {
        self.runner.pipeline().0.push(words.iter());
    }
}

/// Returns the key of a record in a snapshot.
fn copy_key(record: &str, save: Option<usize>) -> String {
    save.map_or_else(|| record.to_owned(), |save| format!("{save}:{record}"))
}

/// Returns true for the reply of a script, and not for those of SET, COPY and DEL.
fn is_reply_of_command(reply: &Value) -> bool {
    let is_ok = |text: &str| text == "OK";
    !matches!(reply, Value::Integer(_)) && !matches!(reply, Value::String(text) if is_ok(text))
}
