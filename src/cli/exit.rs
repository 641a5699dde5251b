//! Exit statuses: the one table from kinds of error to numbers. Job scripts rely on them
//! (docs/CLI.md).
//!
//! Invariant: `run` adds 120 to the status of its own failures, to keep them apart from those of
//! the command.

use std::ffi::OsString;
use std::process::ExitCode;

use super::term;
use crate::error::{Error, Kind, Result};
use crate::lifecycle::Outcome;

/// Added by `run` to the status of its own failures.
const RUN_OFFSET: u8 = 120;

/// The status of errors without a more specific one.
const FAILED: u8 = 1;

pub(super) const USAGE: u8 = 2;

const DAMAGED: u8 = 3;

/// The exit status of a subcommand. An error is shown.
pub(super) fn status(result: Result<u8>) -> ExitCode {
    ExitCode::from(result.unwrap_or_else(|error| show(&error)))
}

pub(super) fn status_of_run(result: Result<Outcome>) -> ExitCode {
    let number = match result {
        Ok(Outcome::Exited(code)) => low_byte(code),
        Ok(Outcome::Killed(signal)) => 128_u8.saturating_add(low_byte(signal)),
        Ok(Outcome::NotFound) => 127,
        Ok(Outcome::NotExecutable) => 126,
        Err(error) => {
            let status = show(&error);
            // 126 is reserved for a command that cannot be executed.
            let own = if error.kind() == Kind::TimedOut { FAILED } else { status };
            RUN_OFFSET.saturating_add(own)
        }
    };
    ExitCode::from(number)
}

/// The exit status after clap rejected the arguments or printed help.
pub(super) fn usage(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    let is_run = arguments.get(1).is_some_and(|word| word == "run");
    match (error.use_stderr(), is_run) {
        (false, _) => ExitCode::SUCCESS,
        (true, true) => ExitCode::from(RUN_OFFSET + USAGE),
        (true, false) => ExitCode::from(USAGE),
    }
}

/// Shows an error, unless another process has, and returns the exit status for it.
pub(super) fn show(error: &Error) -> u8 {
    if !matches!(error.kind(), Kind::Reported(_)) {
        term::show_error(error);
    }
    of(error)
}

/// The status of a command that has shown the readable part of an archive.
pub(super) fn of_shown() -> u8 {
    if crate::log::has_losses() { DAMAGED } else { 0 }
}

pub(super) fn of(error: &Error) -> u8 {
    match error.kind() {
        Kind::NotFound
        | Kind::NotADirectory
        | Kind::IsADirectory
        | Kind::InvalidInput
        | Kind::PastEnd
        | Kind::NoAttribute
        | Kind::Io
        | Kind::Unreachable
        | Kind::Denied
        | Kind::Busy
        | Kind::Changed
        | Kind::Interrupted => 1,
        Kind::Usage => USAGE,
        Kind::Corrupt | Kind::Truncated | Kind::UnknownFormat | Kind::Unsupported => DAMAGED,
        Kind::CannotMount => 4,
        Kind::NotMounted => 5,
        Kind::TimedOut => 6,
        Kind::Reported(status) => status,
    }
}

/// The low eight bits of a status, which is all that the kernel passes on.
fn low_byte(number: i32) -> u8 {
    number.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_run_differ_from_failures_of_the_command() {
        let shown = |code: ExitCode| format!("{code:?}");
        let failed = |kind| shown(status_of_run(Err(Error::new(kind, ""))));
        let not_executable = shown(status_of_run(Ok(Outcome::NotExecutable)));
        assert_eq!(not_executable, shown(ExitCode::from(126)));
        assert_eq!(failed(Kind::TimedOut), shown(ExitCode::from(121)));
        assert_eq!(failed(Kind::CannotMount), shown(ExitCode::from(124)));
        assert_eq!(shown(status(Err(Error::new(Kind::TimedOut, "")))), shown(ExitCode::from(6)));
    }
}
