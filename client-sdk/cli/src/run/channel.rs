//! What `run` and the guard of its command say to each other, over a socket that nobody else has.

use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
    str::FromStr,
    time::Duration,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Interest, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

const FIRST_MAX_BYTES: usize = 64;

/// To the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The lock can be trusted until then, on the clock of deadlines.
    Until(Duration),
    /// It was lost.
    Lost,
}

/// From the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// Signals are caught.
    Ready,
    /// The command runs.
    Started,
    /// The command was stopped at the terminal, which is given back.
    Stopped,
    /// Nobody vouched for the lock any more: the command is asked to end.
    Lost,
    /// The command and what came of it are gone.
    Ended(Ending),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Code(i32),
    Signal(i32),
}

/// One end.
pub(super) struct Channel {
    lines: Lines<BufReader<OwnedReadHalf>>,
    out: OwnedWriteHalf,
}

impl Channel {
    /// This end, and the one to give away.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (here, there) = StdStream::pair()?;
        Ok((Self::of(here)?, there.into()))
    }

    pub(super) fn of(stream: StdStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (input, out) = UnixStream::from_std(stream)?.into_split();
        let lines = BufReader::new(input).lines();
        Ok(Self { lines, out })
    }

    /// Says something.
    pub(super) async fn say(&mut self, what: impl fmt::Display) -> io::Result<()> {
        self.out.write_all(format!("{what}\n").as_bytes()).await
    }

    /// Says something, or not if the other side has not listened for so long that there is no room: whoever
    /// vouches for a lock must not stand still itself.
    pub(super) fn mention(&self, what: impl fmt::Display) {
        // One that is gone says so where it is heard.
        let _ = self.out.try_write(format!("{what}\n").as_bytes());
    }

    /// The next thing that the other side says; `None` once it is gone. Cancel safe.
    pub(super) async fn hear<T: FromStr>(&mut self) -> Option<T> {
        let line = self.lines.next_line().await.ok()??;
        line.parse().ok()
    }

    /// Sends the first order, with the standard input that the command gets.
    pub(super) async fn begin(&mut self, until: Duration, stdin: OwnedFd) -> io::Result<()> {
        let text = format!("{}\n", Order::Until(until));
        let stream: &UnixStream = self.out.as_ref();
        stream
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let fds = [stdin.as_fd()];
                control.push(SendAncillaryMessage::ScmRights(&fds));
                let text = [IoSlice::new(text.as_bytes())];
                let sent = sendmsg(stream.as_fd(), &text, &mut control, SendFlags::empty());
                Ok(sent.map(drop)?)
            })
            .await
    }

    /// Receives it.
    pub(super) async fn begun(&mut self) -> io::Result<(Duration, OwnedFd)> {
        let stream: &UnixStream = self.out.as_ref();
        let (text, stdin) = stream
            .async_io(Interest::READABLE, || first(stream))
            .await?;
        match (text.trim_end().parse(), stdin) {
            (Ok(Order::Until(until)), Some(stdin)) => Ok((until, stdin)),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not the first order",
            )),
        }
    }
}

fn first(stream: &UnixStream) -> io::Result<(String, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; FIRST_MAX_BYTES];
    let mut into = [IoSliceMut::new(&mut text)];
    let received = recvmsg(
        stream.as_fd(),
        &mut into,
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut stdin = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            stdin = fds.next();
        }
    }
    let text = String::from_utf8_lossy(&text[..received.bytes]);
    Ok((text.into_owned(), stdin))
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Until(at) => write!(f, "until {}", at.as_nanos()),
            Self::Lost => f.write_str("lost"),
        }
    }
}

impl FromStr for Order {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        match line.split_once(' ') {
            None if line == "lost" => Ok(Self::Lost),
            Some(("until", ns)) => ns
                .parse()
                .map(Duration::from_nanos)
                .map(Self::Until)
                .map_err(drop),
            Some(_) | None => Err(()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Started => f.write_str("started"),
            Self::Stopped => f.write_str("stopped"),
            Self::Lost => f.write_str("lost"),
            Self::Ended(Ending::Code(code)) => write!(f, "code {code}"),
            Self::Ended(Ending::Signal(signal)) => write!(f, "signal {signal}"),
        }
    }
}

impl FromStr for Report {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let ending = |number: &str, ending: fn(i32) -> Ending| {
            number.parse().map(ending).map(Self::Ended).map_err(drop)
        };
        match line.split_once(' ') {
            Some(("code", number)) => ending(number, Ending::Code),
            Some(("signal", number)) => ending(number, Ending::Signal),
            Some(_) => Err(()),
            None => match line {
                "ready" => Ok(Self::Ready),
                "started" => Ok(Self::Started),
                "stopped" => Ok(Self::Stopped),
                "lost" => Ok(Self::Lost),
                _ => Err(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for order in [Order::Lost, Order::Until(Duration::from_nanos(17))] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        let endings = [Ending::Code(3), Ending::Signal(9)].map(Report::Ended);
        let others = [
            Report::Ready,
            Report::Started,
            Report::Stopped,
            Report::Lost,
        ];
        for report in endings.into_iter().chain(others) {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
        assert_eq!("until soon".parse::<Order>(), Err(()));
    }
}
