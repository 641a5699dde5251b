//! The lines that a task writes to its standard output and the launcher reads through srun.
//!
//! A line is `archfs-step NODE PROGRESS`; srun puts the number of the task before it (`--label`).
//! Other lines come from the site's TaskProlog and are ignored.

use std::fmt;

/// The progress of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits for `begin`.
    Started,
    /// It is opening the archives. Repeated, so that a task that stays silent has ended.
    Opening,
    /// Its files can be read. It waits for `hold`.
    Ready,
    /// It keeps the mount, and no longer needs srun or the launcher.
    Holding,
    /// It has succeeded, and exits.
    Done,
    /// It has failed with this exit status, and has written the error to standard error.
    Failed(u8),
}

/// The lines that the launcher writes to the standard input of all tasks.
pub(super) const BEGIN: &str = "begin";
pub(super) const HOLD: &str = "hold";

const PREFIX: &str = "archfs-step";

/// A line of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// The number of the task, if srun has put it before the line.
    pub(super) task: Option<u32>,
    pub(super) node: String,
    pub(super) progress: Progress,
}

impl Message {
    /// Parses a line of srun's standard output; `None` if it is not from archfs.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (task, text) = split_label(line);
        let mut words = text.split_ascii_whitespace();
        if words.next()? != PREFIX {
            return None;
        }
        let node = words.next()?.to_owned();
        let progress = match (words.next()?, words.next()) {
            ("started", None) => Progress::Started,
            ("opening", None) => Progress::Opening,
            ("ready", None) => Progress::Ready,
            ("holding", None) => Progress::Holding,
            ("done", None) => Progress::Done,
            ("failed", Some(status)) => Progress::Failed(status.parse().ok()?),
            _ => return None,
        };
        Some(Self { task, node, progress })
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX} {} ", self.node)?;
        match self.progress {
            Progress::Started => f.write_str("started"),
            Progress::Opening => f.write_str("opening"),
            Progress::Ready => f.write_str("ready"),
            Progress::Holding => f.write_str("holding"),
            Progress::Done => f.write_str("done"),
            Progress::Failed(status) => write!(f, "failed {status}"),
        }
    }
}

/// Splits a line into the number of the task, which srun puts before it, and the text.
pub(super) fn split_label(line: &str) -> (Option<u32>, &str) {
    match line.split_once(": ") {
        Some((label, rest)) => match label.trim_start().parse() {
            Ok(task) => (Some(task), rest),
            Err(_) => (None, line),
        },
        None => (None, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_its_own_lines_with_and_without_a_label() {
        use Progress::{Done, Failed, Holding, Opening, Ready, Started};
        for progress in [Started, Opening, Ready, Holding, Done, Failed(3)] {
            let message = Message { task: None, node: "n1".into(), progress };
            assert_eq!(Message::parse(&message.to_string()).unwrap(), message);
            let labeled = Message::parse(&format!(" 7: {message}\n")).unwrap();
            assert_eq!(labeled, Message { task: Some(7), ..message });
        }
    }

    #[test]
    fn ignores_other_lines() {
        for line in [
            "",
            "0: ",
            "0: module loaded",
            "archfs-step",
            "archfs-step n1",
            "archfs-step n1 failed",
            "archfs-step n1 failed 300",
            "archfs-step n1 ready 1",
            "archfs-steps n1 ready",
        ] {
            assert_eq!(Message::parse(line), None, "{line:?}");
        }
        assert_eq!(split_label("archfs: bad.sqfs: cut"), (None, "archfs: bad.sqfs: cut"));
    }
}
