//! Messages between `run` and the supervisor process of its command, over a private socket pair.

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

const START_MESSAGE_MAX_BYTES: usize = 64;

/// A message to the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SupervisorCommand {
    /// The lock is valid until this time on the clock of `clock::now`.
    ValidUntil(Duration),
    /// The lock was lost.
    Lost,
}

/// A message from the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// The supervisor catches signals.
    Ready,
    /// The command is running.
    Started,
    /// The command was stopped at the terminal, and the terminal was returned to the job.
    Stopped,
    /// The validity was not extended in time, or `run` reported the loss: the command was sent
    /// SIGTERM.
    Lost,
    /// The command has ended, and after a loss of the lock its descendants as well.
    Ended(CommandExit),
}

/// Exit status of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandExit {
    Code(i32),
    Signal(i32),
}

/// One end of the socket pair.
pub(super) struct Channel {
    lines: Lines<BufReader<OwnedReadHalf>>,
    out: OwnedWriteHalf,
}

impl Channel {
    /// Creates a socket pair. Returns this end, and the file descriptor for the other process.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (local, remote) = StdStream::pair()?;
        Ok((Self::from_stream(local)?, remote.into()))
    }

    pub(super) fn from_stream(stream: StdStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (input, out) = UnixStream::from_std(stream)?.into_split();
        let lines = BufReader::new(input).lines();
        Ok(Self { lines, out })
    }

    pub(super) async fn send(&mut self, message: impl fmt::Display) -> io::Result<()> {
        self.out.write_all(format!("{message}\n").as_bytes()).await
    }

    /// Sends a message, or drops it if the socket is full because the other side does not read. The
    /// sender must not block, because it reports the validity of the lock.
    pub(super) fn try_send(&self, message: impl fmt::Display) {
        // The end of the other process is detected by the next read.
        let _ = self.out.try_write(format!("{message}\n").as_bytes());
    }

    /// Receives the next message, or `None` after the end of the other process. Cancel safe.
    pub(super) async fn recv<T: FromStr>(&mut self) -> Option<T> {
        let line = self.lines.next_line().await.ok()??;
        line.parse().ok()
    }

    /// Sends the first message, together with the standard input of the command.
    pub(super) async fn send_start(&mut self, until: Duration, stdin: OwnedFd) -> io::Result<()> {
        let text = format!("{}\n", SupervisorCommand::ValidUntil(until));
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

    /// Receives the first message, with the standard input of the command.
    pub(super) async fn recv_start(&mut self) -> io::Result<(Duration, OwnedFd)> {
        let stream: &UnixStream = self.out.as_ref();
        let (text, stdin) = stream
            .async_io(Interest::READABLE, || recv_start_message(stream))
            .await?;
        match (text.trim_end().parse(), stdin) {
            (Ok(SupervisorCommand::ValidUntil(until)), Some(stdin)) => Ok((until, stdin)),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "unexpected first message",
            )),
        }
    }
}

fn recv_start_message(stream: &UnixStream) -> io::Result<(String, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; START_MESSAGE_MAX_BYTES];
    let mut buffers = [IoSliceMut::new(&mut text)];
    let received = recvmsg(
        stream.as_fd(),
        &mut buffers,
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

impl fmt::Display for SupervisorCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ValidUntil(at) => write!(f, "until {}", at.as_nanos()),
            Self::Lost => f.write_str("lost"),
        }
    }
}

impl FromStr for SupervisorCommand {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        match line.split_once(' ') {
            None if line == "lost" => Ok(Self::Lost),
            Some(("until", ns)) => ns
                .parse()
                .map(Duration::from_nanos)
                .map(Self::ValidUntil)
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
            Self::Ended(CommandExit::Code(code)) => write!(f, "code {code}"),
            Self::Ended(CommandExit::Signal(signal)) => write!(f, "signal {signal}"),
        }
    }
}

impl FromStr for Report {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let ending = |number: &str, ending: fn(i32) -> CommandExit| {
            number.parse().map(ending).map(Self::Ended).map_err(drop)
        };
        match line.split_once(' ') {
            Some(("code", number)) => ending(number, CommandExit::Code),
            Some(("signal", number)) => ending(number, CommandExit::Signal),
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
    fn messages_survive_a_round_trip() {
        for command in [
            SupervisorCommand::Lost,
            SupervisorCommand::ValidUntil(Duration::from_nanos(17)),
        ] {
            assert_eq!(command.to_string().parse(), Ok(command));
        }
        let endings = [CommandExit::Code(3), CommandExit::Signal(9)].map(Report::Ended);
        let others = [
            Report::Ready,
            Report::Started,
            Report::Stopped,
            Report::Lost,
        ];
        for report in endings.into_iter().chain(others) {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
        assert_eq!("until soon".parse::<SupervisorCommand>(), Err(()));
    }
}
