//! Histories as text, with one JSON object on each line.

use super::Event;

/// Encodes a history.
#[must_use]
pub fn encode(events: &[Event]) -> String {
    let lines = events.iter().map(|event| {
        let line = serde_json::to_string(event).expect("an event has a JSON form");
        line + "\n"
    });
    lines.collect()
}

/// Decodes one or several histories that were recorded with the same clock, and orders their events
/// by time.
///
/// # Errors
/// The number of the first line that is not an event, counted from 1, with the error.
pub fn decode(text: &str) -> Result<Vec<Event>, (usize, serde_json::Error)> {
    let lines = text.lines().enumerate();
    let events = lines.map(|(index, line)| {
        serde_json::from_str::<Event>(line).map_err(|error| (index + 1, error))
    });
    let mut events = events.collect::<Result<Vec<_>, _>>()?;
    events.sort_by_key(|event| event.at_us);
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{EventKind, Fault, ReleaseScope};

    #[test]
    fn a_decoded_history_equals_the_encoded_one_in_the_order_of_time() {
        let event = |at_us, kind| Event {
            at_us,
            client: "a".to_owned(),
            kind,
        };
        let scope = ReleaseScope::Entry {
            lock: "x".to_owned(),
            call: 3,
        };
        let released = EventKind::ReleaseInvoked {
            release: 4,
            lease: "l".to_owned(),
            scope,
        };
        let fault = Fault::BrokerKilled {
            broker: "b".to_owned(),
        };
        let [first, second] = [
            event(1, EventKind::FaultBegan { fault }),
            event(2, released),
        ];
        let text = encode(&[second.clone(), first.clone()]);
        assert_eq!(decode(&text).expect("events"), [first, second]);
        let (line, _) = decode(&(text + "{}\n")).expect_err("no event");
        assert_eq!(line, 3);
    }
}
