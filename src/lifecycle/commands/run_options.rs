//! What the user chose for `run`, and how waits are shown.

use std::path::Path;

use crate::progress::{Show, Watch};

/// Which processes see the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// All processes of the user. Only the command, if archfs cannot mount in another way.
    Default,
    /// Only the command.
    Private,
}

/// How to run the command.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions<'o> {
    /// Which processes see the mount.
    pub privacy: Privacy,
    /// Whether the command reads uncompressed files from the archive itself.
    pub is_direct: bool,
    /// The directory to extract to if this node cannot mount; `None` to fail then.
    pub or_extract: Option<&'o Path>,
}

/// How to show waits to the user.
#[derive(Clone, Copy)]
pub struct Display<'d> {
    /// Waits other than that for the command.
    pub show: Show<'d>,
    /// The progress of extracting.
    pub watch: Watch<'d>,
    /// Takes the statistics of a mount that has ended, as JSON; `None` if they are not wanted.
    pub chart: Option<Chart<'d>>,
}

/// Shows statistics.
pub(crate) type Chart<'d> = &'d dyn Fn(&str);
