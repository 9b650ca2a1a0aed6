//! Exhaustive search: every history within bounds.
//!
//! Messages are delivered at once, in the order of their keys, unless the adversary spends a fault
//! on one of them. A message that it delays is delivered at any later time.

pub mod choices;
pub mod state;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use stateright::{Checker as _, Model, Property};
use tokio::time::Instant;

use self::{
    choices::Choice,
    state::{PathBounds, SearchState, world_size},
};
use super::{World, random::Violation, shrink::shrink};

const PROPERTY: &str = "guarantees";

/// Series of bounds, nearly in the order of the number of states within them.
pub const LEVELS: [PathBounds; 13] = [
    PathBounds::new(2, 2, 2, 0),
    PathBounds::new(2, 1, 1, 1),
    PathBounds::new(3, 2, 1, 0),
    PathBounds::new(2, 1, 2, 1),
    PathBounds::new(2, 2, 1, 1),
    PathBounds::new(3, 1, 1, 1),
    PathBounds::new(2, 1, 1, 2),
    PathBounds::new(2, 2, 2, 1),
    PathBounds::new(2, 2, 1, 2),
    PathBounds::new(3, 2, 2, 1),
    PathBounds::new(2, 2, 2, 2),
    PathBounds::new(3, 2, 2, 2),
    PathBounds::new(3, 3, 3, 3),
];

/// Search of all histories within bounds.
#[derive(Debug, Clone, Copy)]
pub struct Search {
    pub locks: u8,
    pub bounds: PathBounds,
    /// Number of states after which the search ends.
    pub states_max: Option<usize>,
    pub deadline: Option<Instant>,
}

/// Result of a [`Search`].
#[derive(Debug)]
pub struct SearchResult {
    pub search: Search,
    /// Number of states that were reached, of which `unique_states` differ.
    pub states: usize,
    pub unique_states: usize,
    /// Number of choices of the longest history.
    pub depth: usize,
    /// True if all histories within the bounds were examined.
    pub is_complete: bool,
    pub violation: Option<Violation>,
    /// Numbers of the observed events.
    pub counts: BTreeMap<&'static str, u64>,
}

/// Model of a search.
struct SearchModel {
    search: Search,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    counts: BTreeMap<&'static str, u64>,
    states: usize,
    /// True if states were not examined.
    is_cut: bool,
    /// True after the search, while its result is determined.
    is_over: bool,
}

impl Search {
    /// Examines the histories until one violates a property.
    #[must_use]
    pub fn run(self) -> SearchResult {
        let model = SearchModel {
            search: self,
            progress: Mutex::default(),
        };
        let checker = model.checker().spawn_dfs().join();
        checker.model().progress().is_over = true;
        let path = checker.discovery(PROPERTY);
        let violation = path.map(|path| {
            let violation = self.replay(path.into_actions());
            shrink(|| World::new(world_size(self.locks)), violation)
        });
        let mut progress = checker.model().progress();
        SearchResult {
            search: self,
            states: checker.state_count(),
            unique_states: checker.unique_state_count(),
            depth: checker.max_depth() - 1,
            is_complete: !progress.is_cut && violation.is_none(),
            violation,
            counts: std::mem::take(&mut progress.counts),
        }
    }

    /// Repeats choices that violate a property.
    fn replay(&self, choices: Vec<Choice>) -> Violation {
        let mut state = SearchState::new(self.locks, self.bounds);
        let mut actions = Vec::new();
        for choice in choices {
            state.choose(choice, |action| actions.push(action.clone()));
        }
        let property = state.violation.expect("a violated property");
        Violation { actions, property }
    }
}

impl SearchModel {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Model for SearchModel {
    type State = SearchState;
    type Action = Choice;

    fn init_states(&self) -> Vec<SearchState> {
        vec![SearchState::new(self.search.locks, self.search.bounds)]
    }

    fn actions(&self, state: &SearchState, choices: &mut Vec<Choice>) {
        let Search {
            states_max,
            deadline,
            ..
        } = self.search;
        let mut progress = self.progress();
        progress.is_cut |= states_max.is_some_and(|states_max| progress.states >= states_max)
            || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if (progress.is_over || !progress.is_cut) && state.violation.is_none() {
            state.choices(choices);
        }
    }

    fn next_state(&self, state: &SearchState, choice: Choice) -> Option<SearchState> {
        let mut next = state.clone();
        let applied = next.choose(choice, |_| {});
        let mut progress = self.progress();
        for (event, count) in next.take_counts() {
            *progress.counts.entry(event).or_default() += count;
        }
        progress.states += usize::from(applied);
        applied.then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(PROPERTY, |_, state: &SearchState| {
            state.violation.is_none()
        })]
    }
}

impl fmt::Display for SearchResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Search { locks, bounds, .. } = self.search;
        let end = match (&self.violation, self.is_complete) {
            (Some(_), _) => "a violation",
            (None, true) => "complete, 0 violations",
            (None, false) => "cut off, 0 violations",
        };
        write!(
            f,
            "{locks} lock(s), {bounds}: {} states, {} unique, depth {}, {end}",
            self.states, self.unique_states, self.depth
        )
    }
}
