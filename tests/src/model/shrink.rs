//! The shortest history that still violates a property.

use super::{
    ModelWorld,
    random::{History, Violation},
};

/// Removes actions from a history as long as some property is violated without them. `new_world`
/// creates the world in which the history begins.
#[must_use]
pub fn shrink<W: ModelWorld>(
    new_world: impl Fn() -> W,
    violation: Violation<W::Action>,
) -> Violation<W::Action> {
    let mut shortest = violation;
    let mut chunk = shortest.actions.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < shortest.actions.len() {
            let end = (at + chunk).min(shortest.actions.len());
            let mut actions = shortest.actions.clone();
            actions.drain(at..end);
            match violated(new_world(), actions) {
                Some(shorter) => shortest = shorter,
                None => at = end,
            }
        }
        chunk /= 2;
    }
    shortest
}

/// Repeats a history in a new world. Returns its applied actions until the first violation, or
/// `None` if it violates no property.
#[must_use]
pub fn violated<W: ModelWorld>(world: W, actions: Vec<W::Action>) -> Option<Violation<W::Action>> {
    let mut history = History {
        world,
        actions: Vec::new(),
    };
    let mut violations = actions
        .into_iter()
        .map(|action| history.apply(action).err());
    violations.find_map(|violation| violation.map(|violation| *violation))
}
