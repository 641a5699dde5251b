//! The protocol on the socket of a mount: one line per request, one line per answer.
//!
//! After an upgrade of archfs, its commands talk to daemons of the old version. So the words on the
//! wire stay the same, even if a name in this file changes.

use rustix::fd::BorrowedFd;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::Detach;
use crate::log::Message;
use crate::os::process::ProcessId;
use crate::stats::{Blocked, ReadaheadCounts, StageCounts, TogetherCounts};
use crate::units::processes;

/// The maximum number of bytes that a client may have sent without an answer, in one request or
/// several.
pub(super) const PENDING_INPUT_MAX: usize = 10 << 10;

/// `Hold` and `Leave` take and return the lease of this connection. `Watch` and `Unwatch` take and
/// return the lease of another process, which has no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Take a lease that ends with this connection.
    Hold,
    /// Return the lease of this connection, but keep the connection open for the outcome. If the
    /// mount stays, the daemon answers at once. If not, it closes the connection once it has
    /// unmounted.
    Leave,
    /// Take a lease that ends with that process.
    Watch(ProcessId),
    /// Return the lease of that process.
    Unwatch(ProcessId),
    /// Keep the mount until `Unmount`, even without leases.
    KeepUntilUnmount,
    Status,
    /// What `Status` has, without the names of the holders, which take the daemon longer.
    Health,
    Stats,
    /// Pass what the library of `run --direct` needs (`crate::direct`).
    Direct,
    Unmount(UnmountRequest),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnmountRequest {
    /// Whether to unmount a mount that is in use.
    pub(crate) how: Detach,
    /// The process that runs `archfs unmount`, and its script.
    pub(crate) callers: Vec<ProcessId>,
}

/// The answer of a daemon to a request to unmount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnmountAnswer {
    /// It is unmounting; another answer follows. If the page cache is large, the kernel may take
    /// long to free it.
    Begun,
    /// It has unmounted, and removed what it had created for the mount.
    Done,
    /// The leases of the callers have ended, but the mount stays: these are its other holders.
    Released(String),
    /// The callers hold no lease; these processes do.
    Refused(String),
    /// The mount is in use, or another mount covers it; the text says how.
    Busy(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    /// The daemon is about to unmount; it closes the connection when it has.
    Ending,
    NoProcess,
    /// The mount stays: it has other holders, or stays until it is unmounted explicitly.
    Held,
    /// The mount has no holder, but it stays for a while.
    Lingering,
    /// The daemon has as many clients as it can serve. It sends this unasked, and closes the
    /// connection.
    TooManyClients,
}

/// The version of the request for direct reads. A daemon closes the connection on others, and then
/// a library of another version reads through the mount.
const DIRECT_VERSION: &str = "2";

/// The answer to a request for direct reads. `src/direct/library.c` reads it.
#[derive(Debug)]
pub(crate) enum DirectAnswer<'d> {
    /// The daemon is making the table.
    Later,
    /// No file of this mount can be read directly.
    Never,
    /// The table, the word and the counters of the state, the archive files, and the granules of a
    /// copy, if one is among them.
    Ready(Vec<BorrowedFd<'d>>),
}

impl DirectAnswer<'_> {
    /// The line, and the descriptors that go with it.
    pub(super) fn encode(&self) -> (String, &[BorrowedFd<'_>]) {
        match self {
            Self::Later => ("direct later\n".into(), &[]),
            Self::Never => ("direct none\n".into(), &[]),
            Self::Ready(descriptors) => {
                (format!("direct {}\n", descriptors.len().saturating_sub(3)), descriptors)
            }
        }
    }
}

impl Request {
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Hold => "hold\n".into(),
            Self::Watch(process) => format!("watch {process}\n"),
            Self::KeepUntilUnmount => "keep\n".into(),
            Self::Unwatch(process) => format!("release {process}\n"),
            Self::Leave => "leave\n".into(),
            Self::Status => "status\n".into(),
            Self::Health => "health\n".into(),
            Self::Stats => "numbers\n".into(),
            Self::Direct => format!("direct {DIRECT_VERSION}\n"),
            Self::Unmount(UnmountRequest { how, callers }) => {
                let how = match how {
                    Detach::IfIdle => "idle",
                    Detach::Lazily => "lazily",
                };
                let callers: String = callers.iter().map(|caller| format!(" {caller}")).collect();
                format!("unmount {how}{callers}\n")
            }
        }
    }

    /// The request in `line`, which has no newline.
    pub(super) fn decode(line: &str) -> Result<Self> {
        let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (keyword, rest) {
            ("hold", "") => Ok(Self::Hold),
            ("watch", process) => process.parse().map(Self::Watch),
            ("keep", "") => Ok(Self::KeepUntilUnmount),
            ("release", process) => process.parse().map(Self::Unwatch),
            ("leave", "") => Ok(Self::Leave),
            ("status", "") => Ok(Self::Status),
            ("health", "") => Ok(Self::Health),
            ("numbers", "") => Ok(Self::Stats),
            ("direct", DIRECT_VERSION) => Ok(Self::Direct),
            ("unmount", rest) => {
                let mut words = rest.split(' ');
                let how = match words.next() {
                    Some("idle") => Detach::IfIdle,
                    Some("lazily") => Detach::Lazily,
                    _ => return Err(Error::new(Kind::Usage, format!("{line:?} is not a request"))),
                };
                let callers = words.map(str::parse).collect::<Result<_>>()?;
                Ok(Self::Unmount(UnmountRequest { how, callers }))
            }
            _ => Err(Error::new(Kind::Usage, format!("{line:?} is not a request"))),
        }
    }
}

impl UnmountAnswer {
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Begun => "begun\n".to_owned(),
            Self::Done => Answer::Done.encode().to_owned(),
            Self::Released(holders) => format!("released {holders}\n"),
            Self::Refused(holders) => format!("refused {holders}\n"),
            Self::Busy(why) => format!("busy {}\n", why.replace('\n', " ")),
        }
    }

    /// The answer in `line`, which ends with a newline.
    pub(super) fn decode(line: &str) -> Option<Self> {
        let line = line.strip_suffix('\n')?;
        let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
        match keyword {
            "begun" => Some(Self::Begun),
            "done" => Some(Self::Done),
            "released" => Some(Self::Released(rest.to_owned())),
            "refused" => Some(Self::Refused(rest.to_owned())),
            "busy" => Some(Self::Busy(rest.to_owned())),
            _ => None,
        }
    }
}

impl Answer {
    const ALL: [(Self, &str); 6] = [
        (Self::Done, "done\n"),
        (Self::Ending, "ending\n"),
        (Self::NoProcess, "no process\n"),
        (Self::Held, "held\n"),
        (Self::Lingering, "lingering\n"),
        (Self::TooManyClients, "too many clients\n"),
    ];

    pub(super) fn encode(self) -> &'static str {
        Self::ALL.iter().find(|(answer, _)| *answer == self).map_or("", |(_, line)| line)
    }

    /// The answer in `line`, which ends with a newline.
    pub(super) fn decode(line: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, text)| *text == line).map(|(answer, _)| *answer)
    }
}

/// The answer to `Request::Status`, as a line of JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) holders: Vec<HolderStatus>,
    /// Whether it stays until it is unmounted explicitly, even without holders.
    #[serde(rename = "kept")]
    pub(crate) until_unmount: bool,
    #[serde(flatten)]
    pub(crate) health: Health,
}

/// How a mount serves its readers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// How much is copied to this node; `None` without a copy.
    pub staged: Option<StageCounts>,
    /// What was read ahead of programs.
    pub readahead: Option<ReadaheadCounts>,
    /// What the nodes of a job read for each other; `None` unless they do.
    pub together: Option<TogetherCounts>,
    /// Requests that have waited for long.
    pub blocked: Blocked,
    /// The first and the last errors and warnings since it was mounted.
    pub messages: Vec<Message>,
    /// Whether the daemon has printed them on a standard error that is open.
    pub are_printed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HolderStatus {
    pub(crate) pid: i32,
    pub(crate) name: String,
}

impl HolderStatus {
    /// The list for a message: `processes 12 (bash), 13 (python3)`.
    pub(crate) fn named(holders: &[Self]) -> String {
        let named: Vec<_> =
            holders.iter().map(|holder| format!("{} ({})", holder.pid, holder.name)).collect();
        format!("{} {}", processes(named.len()), named.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_survive_encoding_and_decoding() {
        let process = "2147483647:18446744073709551615".parse().unwrap();
        for request in [
            Request::Hold,
            Request::Watch(process),
            Request::KeepUntilUnmount,
            Request::Unwatch(process),
            Request::Leave,
            Request::Status,
            Request::Health,
            Request::Stats,
            Request::Direct,
            Request::Unmount(UnmountRequest { how: Detach::IfIdle, callers: vec![process; 2] }),
            Request::Unmount(UnmountRequest { how: Detach::Lazily, callers: vec![] }),
        ] {
            let line = request.encode();
            assert!(line.len() <= PENDING_INPUT_MAX);
            assert_eq!(Request::decode(line.trim_end()).unwrap(), request);
        }
        for line in ["", "hold x", "watch", "watch 1", "shutdown", "unmount", "unmount idle 1"] {
            assert!(Request::decode(line).is_err(), "{line}");
        }
        for (answer, line) in Answer::ALL {
            assert_eq!(answer.encode(), line);
            assert_eq!(Answer::decode(line), Some(answer));
        }
        assert_eq!(Answer::decode("done"), None);
        for answer in [
            UnmountAnswer::Begun,
            UnmountAnswer::Done,
            UnmountAnswer::Released("12 (bash), 13 (a b)".into()),
            UnmountAnswer::Refused("12 (bash)".into()),
            UnmountAnswer::Busy("/m: in use".into()),
        ] {
            assert_eq!(UnmountAnswer::decode(&answer.encode()), Some(answer));
        }
        assert_eq!(UnmountAnswer::decode("busy"), None);
        assert_eq!(UnmountAnswer::decode(""), None);
    }
}
