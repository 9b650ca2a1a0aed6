//! What is on the screen while a lock is waited for.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use leasehold::Place;
use leasehold_proto::text::plain;
use rustix::termios::tcgetwinsize;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::show;

/// Something is on the screen by then.
const FIRST: Duration = Duration::from_millis(80);
/// Elsewhere only a broker that is slow is worth a line before there is a place in line.
const FIRST_ELSEWHERE: Duration = Duration::from_secs(1);
/// How often the line on a terminal is drawn again.
const REDRAW: Duration = Duration::from_secs(1);
/// How often a line is added elsewhere.
const REMIND: Duration = Duration::from_secs(30);

/// One line that changes on a terminal; elsewhere one line for each change.
pub(crate) struct Waiting {
    name: String,
    /// What is done before there is a place in line.
    doing: String,
    begun: Instant,
    is_quiet: bool,
    is_terminal: bool,
    is_drawn: bool,
}

impl Waiting {
    pub(crate) fn new(name: &str, endpoint: &str, is_quiet: bool) -> Self {
        Self {
            name: plain(name),
            doing: format!("asking {endpoint}"),
            begun: Instant::now(),
            is_quiet,
            is_terminal: io::stderr().is_terminal(),
            is_drawn: false,
        }
    }

    /// Does the work, and tells how it goes meanwhile.
    pub(crate) async fn during<T>(
        &mut self,
        work: impl Future<Output = T>,
        mut places: watch::Receiver<Option<Place>>,
    ) -> T {
        let first = if self.is_terminal {
            FIRST
        } else {
            FIRST_ELSEWHERE
        };
        let mut next = self.begun + first;
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => {
                    self.clear();
                    return done;
                }
                Ok(()) = places.changed() => {}
                () = sleep_until(next) => {}
            }
            let text = self.text(places.borrow_and_update().as_ref());
            self.draw(&text);
            next = Instant::now() + if self.is_terminal { REDRAW } else { REMIND };
        }
    }

    fn text(&self, place: Option<&Place>) -> String {
        let waited = show::about(self.begun.elapsed());
        let Some(place) = place else {
            return format!(
                "waiting for {}: {} for {waited} (Ctrl-C to give up)",
                self.name, self.doing
            );
        };
        let held = match place.holders.as_slice() {
            [] => ", free in a moment".to_owned(),
            [first, others @ ..] => {
                let more = match others.len() {
                    0 => String::new(),
                    count => format!(" and {count} more"),
                };
                let reason = match first.reason.as_str() {
                    "" => String::new(),
                    reason => format!(" {:?}", plain(reason)),
                };
                let age = first.since.map(|since| show::about(show::age(since)));
                let age = age.map(|age| format!(" for {age}")).unwrap_or_default();
                format!(", held by {}{reason}{age}{more}", plain(&first.owner))
            }
        };
        format!(
            "waiting for {}: position {} of {}{held} (Ctrl-C to give up)",
            self.name, place.position, place.queue_length
        )
    }

    fn draw(&mut self, text: &str) {
        if self.is_quiet {
            return;
        }
        if !self.is_terminal {
            return show::say(text);
        }
        let line = format!("leasehold: {text}");
        let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        let width = if columns == 0 { 80 } else { columns };
        // The last column stays free: some terminals begin a new line there.
        let line: String = line.chars().take(width - 1).collect();
        self.is_drawn = true;
        put(&format!("\r\u{1b}[2K{line}"));
    }

    /// Takes the line off a terminal.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            put("\r\u{1b}[2K");
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.clear();
    }
}

fn put(text: &str) {
    let mut stderr = io::stderr();
    // A terminal that is gone needs no line.
    let _ = write!(stderr, "{text}").and_then(|()| stderr.flush());
}
