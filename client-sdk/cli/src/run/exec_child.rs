//! The step between the guard and the command: asks to die with the guard, then becomes the command.

use std::{io, os::unix::process::CommandExt as _, process::Command};

use rustix::process::{Pid, getppid};

use super::tree;
use crate::{
    args::ExecChild,
    exit::{CANNOT_EXECUTE, Failure, NO_COMMAND},
};

pub(crate) fn exec_child(args: ExecChild) -> Result<u8, Failure> {
    let [command, arguments @ ..] = args.command.as_slice() else {
        return Err(Failure::own("no command"));
    };
    tree::die_with_parent()
        .map_err(|error| Failure::own(format!("cannot tie the command to its guard: {error}")))?;
    // It may have died before.
    if getppid() != Pid::from_raw(args.guard) {
        return Err(Failure::own("the guard of the command is gone"));
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
