//! The shortest history that still violates a property.

use super::{
    action::Action,
    random::Violation,
    world::{World, WorldSize},
};

/// Removes actions from a history as long as some property is violated without them.
#[must_use]
pub fn shrink(size: WorldSize, violation: Violation) -> Violation {
    let mut shortest = violation;
    let mut chunk = shortest.actions.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < shortest.actions.len() {
            let end = (at + chunk).min(shortest.actions.len());
            let mut actions = shortest.actions.clone();
            actions.drain(at..end);
            match violated(size, &actions) {
                Some(shorter) => shortest = shorter,
                None => at = end,
            }
        }
        chunk /= 2;
    }
    shortest
}

/// Repeats a history. Returns its applied actions until the first violation, or `None` if it
/// violates no property.
#[must_use]
pub fn violated(size: WorldSize, actions: &[Action]) -> Option<Violation> {
    let mut world = World::new(size);
    let mut applied = Vec::new();
    for action in actions {
        match world.apply(action) {
            Ok(false) => {}
            Ok(true) => applied.push(action.clone()),
            Err(property) => {
                applied.push(action.clone());
                return Some(Violation {
                    actions: applied,
                    property,
                });
            }
        }
    }
    None
}
