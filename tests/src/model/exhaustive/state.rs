//! State of the exhaustive search: a world, and what may still happen in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use super::choices::Choice;
use crate::model::{
    ModelWorld as _,
    action::Action,
    keys::MessageKey,
    random::LOW_BOUNDS,
    world::{World, WorldSize},
};

/// Number of clients, the second of which has the slowest clock that assumption A2 allows.
pub(super) const CLIENTS: u8 = 2;
pub(super) const BROKERS: u8 = 2;

/// Maximum numbers of events in one history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PathBounds {
    /// Calls that acquire locks, of all clients.
    pub calls: u8,
    /// Renewals, releases, repeats, abandoned calls, actions on streams, touches and snapshots.
    pub operations: u8,
    pub time_steps: u8,
    /// Messages that are delayed (perhaps for ever) or delivered twice, at most one killed broker,
    /// and at most one loss of data.
    pub faults: u8,
}

/// A world, and what may still happen in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SearchState {
    pub(super) world: World,
    pub(super) remaining: PathBounds,
    /// Messages that the adversary has delayed.
    pub(super) delayed: BTreeSet<MessageKey>,
    pub(super) has_killed: bool,
    pub(super) has_saved: bool,
    pub(super) has_rolled_back: bool,
    /// The violated property, as a sentence.
    pub violation: Option<String>,
}

impl PathBounds {
    /// Creates bounds.
    #[must_use]
    pub const fn new(calls: u8, operations: u8, time_steps: u8, faults: u8) -> Self {
        Self {
            calls,
            operations,
            time_steps,
            faults,
        }
    }
}

impl FromStr for PathBounds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u8>, _> = text.split(',').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[calls, operations, time_steps, faults]) => {
                Ok(Self::new(calls, operations, time_steps, faults))
            }
            Ok(_) | Err(_) => Err(format!("{text} is not four numbers")),
        }
    }
}

/// Returns the size of the world of a search.
#[must_use]
pub fn world_size(locks: u8) -> WorldSize {
    WorldSize {
        clients: CLIENTS,
        brokers: BROKERS,
        locks,
        bounds: LOW_BOUNDS,
        has_journal: false,
    }
}

impl SearchState {
    /// Creates the state in which nothing has happened.
    #[must_use]
    pub fn new(locks: u8, bounds: PathBounds) -> Self {
        Self {
            world: World::new(world_size(locks)),
            remaining: bounds,
            delayed: BTreeSet::new(),
            has_killed: false,
            has_saved: false,
            has_rolled_back: false,
            violation: None,
        }
    }

    /// Applies a choice, and what inevitably follows. Returns false if the choice does not apply.
    pub fn choose(&mut self, choice: Choice, mut on_action: impl FnMut(&Action)) -> bool {
        self.spend(&choice);
        let action = match choice {
            Choice::Delay(message) => {
                self.delayed.insert(message);
                return true;
            }
            Choice::Act(action) => action,
        };
        if let Action::Repeat(message) = action {
            self.delayed.insert(message);
        }
        self.has_killed |= matches!(action, Action::Kill(_));
        self.has_saved |= action == Action::Save;
        self.has_rolled_back |= matches!(action, Action::RollBack { .. });
        on_action(&action);
        // A cancellation may find that there is nothing to cancel.
        if !self.apply(&action) && !matches!(action, Action::Cancel(_)) {
            return false;
        }
        // Without faults nothing else can happen to a message.
        while self.remaining.faults == 0
            && self.violation.is_none()
            && let Some(action) = self.next_message().map(Action::Deliver).or(self.due_step())
        {
            on_action(&action);
            self.apply(&action);
        }
        true
    }

    /// Returns the numbers of the events since the last call.
    pub fn take_counts(&mut self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut self.world.observations.counts)
    }

    fn apply(&mut self, action: &Action) -> bool {
        let applied = self.world.apply(action);
        let messages = &self.world.messages;
        self.delayed
            .retain(|message| messages.contains_key(message));
        match applied {
            Ok(applied) => applied,
            Err(property) => {
                self.violation = Some(property);
                true
            }
        }
    }

    /// Returns the message that is delivered next, unless all messages are delayed.
    pub(super) fn next_message(&self) -> Option<MessageKey> {
        let mut messages = self.world.messages.keys();
        messages
            .find(|message| !self.delayed.contains(message))
            .copied()
    }
}

impl fmt::Display for PathBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            calls,
            operations,
            time_steps,
            faults,
        } = self;
        write!(
            f,
            "{calls} calls, {operations} operations, {time_steps} time steps, {faults} faults"
        )
    }
}
