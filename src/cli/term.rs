//! What a person reads.
//!
//! Owns the form of errors (`archfs: what: why`, then a hint) and the harmless printing of names.
//! Invariant: no byte of an archive reaches a terminal as a control character.

use std::io::{IsTerminal, Write};

use crate::error::{Error, Result};
use crate::log::printable;

/// Shows an error on standard error.
pub(super) fn show_error(error: &Error) {
    // When nobody can read it, there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "archfs: {}", printable(&error.to_string()));
    if let Some(hint) = error.hint() {
        let _ = writeln!(std::io::stderr(), "hint: {}", printable(hint));
    }
}

/// Tells a person something on standard error.
pub(super) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "archfs: {}", printable(text));
}

/// A name as it should be written to standard output: as it is into a pipe, escaped on a terminal.
pub(super) fn name_for_output(name: &[u8]) -> Vec<u8> {
    if std::io::stdout().is_terminal() {
        return printable(&String::from_utf8_lossy(name)).into_bytes();
    }
    name.to_vec()
}

/// The end of writing to standard output; a reader that has seen enough is no error.
///
/// # Errors
/// `Io` for anything else.
pub(super) fn written(result: std::io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io("can not write to standard output", error))
        }
        _ => Ok(()),
    }
}
