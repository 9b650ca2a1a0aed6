//! Progress messages while a lock is being acquired.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use leasehold::{QueuePosition, StoreRecovery};
use leasehold_proto::text::plain;
use rustix::termios::tcgetwinsize;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::output;

/// Time until the first message on a terminal.
const FIRST_MESSAGE_DELAY: Duration = Duration::from_millis(80);
/// Time until the first message without a terminal, so that only a slow broker causes one before
/// the queue position is known.
const FIRST_MESSAGE_DELAY_WITHOUT_TERMINAL: Duration = Duration::from_secs(1);
/// Interval at which the line on a terminal is redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of further lines without a terminal.
const REMINDER_INTERVAL: Duration = Duration::from_secs(30);

/// Progress of an acquire: one line that changes on a terminal, otherwise one line for each change.
pub(crate) struct AcquireProgress {
    name: String,
    /// Activity before the queue position is known.
    activity: String,
    started_at: Instant,
    is_quiet: bool,
    is_terminal: bool,
    is_drawn: bool,
}

impl AcquireProgress {
    pub(crate) fn new(name: &str, endpoint: &str, is_quiet: bool) -> Self {
        Self {
            name: plain(name),
            activity: format!("contacting {endpoint}"),
            started_at: Instant::now(),
            is_quiet,
            is_terminal: io::stderr().is_terminal(),
            is_drawn: false,
        }
    }

    /// Runs `work` and displays its progress.
    pub(crate) async fn show_during<T>(
        &mut self,
        work: impl Future<Output = T>,
        mut queue_positions: watch::Receiver<Option<QueuePosition>>,
    ) -> T {
        let first = if self.is_terminal {
            FIRST_MESSAGE_DELAY
        } else {
            FIRST_MESSAGE_DELAY_WITHOUT_TERMINAL
        };
        let mut next = self.started_at + first;
        let mut received_at = self.started_at;
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => {
                    self.clear();
                    return done;
                }
                Ok(()) = queue_positions.changed() => received_at = Instant::now(),
                () = sleep_until(next) => {}
            }
            let queue_position = queue_positions.borrow_and_update();
            let text = self.text(queue_position.as_ref(), received_at.elapsed());
            drop(queue_position);
            self.draw(&text);
            next = Instant::now()
                + if self.is_terminal {
                    REDRAW_INTERVAL
                } else {
                    REMINDER_INTERVAL
                };
        }
    }

    /// Returns the message for a queue position that was received `received_ago`.
    fn text(&self, queue_position: Option<&QueuePosition>, received_ago: Duration) -> String {
        let elapsed = output::format_rounded(self.started_at.elapsed());
        let Some(queue_position) = queue_position else {
            return format!(
                "waiting for {}: {} for {elapsed} (Ctrl-C to cancel)",
                self.name, self.activity
            );
        };
        let recovery = queue_position.recovery.as_deref();
        let recovery_text = recovery.map(|recovery| describe_recovery(recovery, received_ago));
        if let (0, Some(recovery_text)) = (queue_position.position, &recovery_text) {
            return format!(
                "waiting for {}: {recovery_text} (Ctrl-C to cancel)",
                self.name
            );
        }
        let recovery_text = recovery_text.map_or_else(String::new, |text| format!("; {text}"));
        let holders_text = match queue_position.holders.as_slice() {
            [] if recovery.is_some() => String::new(),
            [] => ", about to be granted".to_owned(),
            [first, others @ ..] => {
                let more = match others.len() {
                    0 => String::new(),
                    count => format!(" and {count} more"),
                };
                let reason = match first.reason.as_str() {
                    "" => String::new(),
                    reason => format!(" {:?}", plain(reason)),
                };
                let age = first
                    .since
                    .map(|since| output::format_rounded(output::age(since)));
                let age = age.map(|age| format!(" for {age}")).unwrap_or_default();
                format!(", held by {}{reason}{age}{more}", plain(&first.owner))
            }
        };
        format!(
            "waiting for {}: position {} of {}{holders_text}{recovery_text} (Ctrl-C to cancel)",
            self.name, queue_position.position, queue_position.queue_length
        )
    }

    fn draw(&mut self, text: &str) {
        if self.is_quiet {
            return;
        }
        if !self.is_terminal {
            return output::print_message(text);
        }
        let line = format!("leasehold: {text}");
        let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        let width = if columns == 0 { 80 } else { columns };
        // The last column stays empty, because some terminals wrap the line there.
        let line: String = line.chars().take(width - 1).collect();
        self.is_drawn = true;
        write_stderr(&format!("\r\u{1b}[2K{line}"));
    }

    /// Clears the line on a terminal.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            write_stderr("\r\u{1b}[2K");
        }
    }
}

/// Describes a recovery of the store that was received `received_ago`.
fn describe_recovery(recovery: &StoreRecovery, received_ago: Duration) -> String {
    let since = recovery.since.map(output::age).map(output::format_rounded);
    let since = since.map_or_else(String::new, |since| format!(" {since} ago"));
    let remaining = recovery.remaining.saturating_sub(received_ago);
    format!(
        "the store {}{since}: no new locks for at most {}",
        plain(&recovery.cause),
        output::format_rounded(remaining)
    )
}

impl Drop for AcquireProgress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn write_stderr(text: &str) {
    let mut stderr = io::stderr();
    // A closed terminal needs no line.
    let _ = write!(stderr, "{text}").and_then(|()| stderr.flush());
}
