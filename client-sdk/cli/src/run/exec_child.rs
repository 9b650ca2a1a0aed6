//! The process between the supervisor and the command: requests SIGKILL at the supervisor's death,
//! then executes the command.

use std::{io, os::unix::process::CommandExt as _, process::Command};

use rustix::process::{Pid, getppid};

use super::process_tree;
use crate::{
    args::ExecChild,
    exit::{CANNOT_EXECUTE, Failure, NO_COMMAND},
};

pub(crate) fn exec_child(args: ExecChild) -> Result<u8, Failure> {
    let [command, arguments @ ..] = args.command.as_slice() else {
        return Err(Failure::general("no command"));
    };
    process_tree::die_with_parent().map_err(|error| {
        Failure::general(format!("cannot tie the command to its guard: {error}"))
    })?;
    // The supervisor may have exited before.
    if getppid() != Pid::from_raw(args.guard) {
        return Err(Failure::general("the guard of the command has exited"));
    }
    let error = Command::new(command).args(arguments).exec();
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let code = if is_missing {
        NO_COMMAND
    } else {
        CANNOT_EXECUTE
    };
    Err(Failure::new(
        code,
        format!("cannot run {}: {error}", command.display()),
    ))
}
