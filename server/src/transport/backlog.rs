//! Calls of a connection whose heads were read and that have not begun. HTTP/2 is read on until the socket is empty before
//! the first of them begins, and until then no bound of calls counts them.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use super::load::Load;

/// Calls of a connection that may have to begin; with more it is not read.
const BACKLOG_MAX: i32 = 16;
/// How long it waits for them at most. Not each head is that of a call that begins: some are refused by HTTP/2, and some
/// are trailers.
const WAITS_MAX: Duration = Duration::from_millis(20);

/// The backlog of a connection.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Heads that were read, less those that no call belongs to.
    heads: u32,
    waits: Option<Pin<Box<Sleep>>>,
}

impl Backlog {
    /// Notes heads that were read.
    pub(super) fn read(&mut self, heads: u32) {
        self.heads = self.heads.wrapping_add(heads);
    }

    /// Waits until few calls have to begin.
    pub(super) fn poll_short(&mut self, load: &Load, cx: &mut Context<'_>) -> Poll<()> {
        // Below zero for calls that were forgotten and begin later.
        if self.heads.wrapping_sub(load.calls_begun()).cast_signed() < BACKLOG_MAX {
            self.waits = None;
            return Poll::Ready(());
        }
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(WAITS_MAX)));
        ready!(waits.as_mut().poll(cx));
        (self.heads, self.waits) = (load.calls_begun(), None);
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::Arc};

    use tokio::time::advance;

    use super::{
        super::{budget::Budget, seats::Ticket},
        *,
    };

    async fn is_short(backlog: &mut Backlog, load: &Load) -> bool {
        poll_fn(|cx| Poll::Ready(backlog.poll_short(load, cx).is_ready())).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_read_on_when_its_calls_have_begun_or_do_not_begin() {
        let ticket = Ticket::alone([127, 0, 0, 1].into());
        let load = Load::new(&Budget::default(), Arc::new(ticket));
        let mut backlog = Backlog::default();
        backlog.read(BACKLOG_MAX.cast_unsigned() - 1);
        assert!(is_short(&mut backlog, &load).await);
        backlog.read(1);
        assert!(!is_short(&mut backlog, &load).await);
        load.begun();
        assert!(is_short(&mut backlog, &load).await);
        backlog.read(1);
        assert!(!is_short(&mut backlog, &load).await);
        advance(WAITS_MAX).await;
        assert!(is_short(&mut backlog, &load).await);
        backlog.read(BACKLOG_MAX.cast_unsigned() - 1);
        assert!(
            is_short(&mut backlog, &load).await,
            "the others are forgotten"
        );
    }
}
