//! What the log is told of a server's refusals: each once in a while, however many calls it meets.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

const EVERY: Duration = Duration::from_secs(60);
const KNOWN_MAX: usize = 100;

/// What was told, and when.
#[derive(Debug, Default)]
pub(super) struct Complaints(Mutex<Vec<Complaint>>);

#[derive(Debug)]
struct Complaint {
    kind: &'static str,
    about: String,
    told_at: Instant,
    untold: u64,
}

impl Complaints {
    /// Whether a complaint is to be told now; if so, how many like it were not since the last.
    pub(super) fn due(&self, kind: &'static str, about: &str) -> Option<u64> {
        self.due_at(Instant::now(), kind, about)
    }

    fn due_at(&self, now: Instant, kind: &'static str, about: &str) -> Option<u64> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |known: &&mut Complaint| known.kind == kind && known.about == about;
        if let Some(complaint) = known.iter_mut().find(same) {
            complaint.untold += 1;
            if now < complaint.told_at + EVERY {
                return None;
            }
            complaint.told_at = now;
            return Some(std::mem::take(&mut complaint.untold) - 1);
        }
        if known.len() == KNOWN_MAX {
            known.retain(|complaint| now < complaint.told_at + EVERY);
        }
        if known.len() == KNOWN_MAX {
            return None;
        }
        known.push(Complaint {
            kind,
            about: about.to_owned(),
            told_at: now,
            untold: 0,
        });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_complaint_is_told_once_in_a_while() {
        let complaints = Complaints::default();
        let (now, later) = (Instant::now(), Instant::now() + EVERY);
        assert_eq!(complaints.due_at(now, "one", ""), Some(0));
        for _ in 0..9 {
            assert_eq!(complaints.due_at(now, "one", ""), None);
        }
        assert_eq!(complaints.due_at(now, "other", ""), Some(0));
        assert_eq!(complaints.due_at(now, "one", "a lock"), Some(0));
        assert_eq!(complaints.due_at(later, "one", ""), Some(9));
        assert_eq!(complaints.due_at(later, "one", ""), None);
    }

    #[test]
    fn a_storm_about_everything_is_told_in_part() {
        let complaints = Complaints::default();
        let told = |at| {
            let locks = (0..10_000).map(|lock| format!("lock {lock}"));
            let due = locks.filter_map(|lock| complaints.due_at(at, "one", &lock));
            due.count()
        };
        let now = Instant::now();
        assert_eq!((told(now), told(now)), (KNOWN_MAX, 0));
        assert_eq!(told(now + EVERY), KNOWN_MAX);
    }
}
