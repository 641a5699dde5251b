//! Files on HTTP servers and objects in S3, read by ranges.
//!
//! Invariants: all bytes are of the version that was opened, or the read fails. An error that may
//! pass is tried again as long as the caller allows. No text of an error has a secret of a URL, a
//! key or a token.

use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Kind, Result};
use crate::sync::{AtomicBool, OnceLock, Ordering};
use crate::url;

mod address;
mod answer;
mod failure;
mod http;
mod mirrors;
mod names;
mod outage;
mod peer;
mod s3;
mod server;
#[cfg(all(test, not(feature = "model")))]
mod tests;

use answer::{Answer, Wanted};
use failure::Failure;
use mirrors::{Mirrors, Others};
use outage::{Deadline, Failing, Outage, Patience};
use server::Server;

pub use peer::{PEER_NAME, PeerFailure, PeerIdentity, PeerServer, PeerWanted, STORAGE_BYTES};

/// Who asks for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// A program that waits for them.
    Reader,
    /// The fill of a copy, which tries again later.
    Fill,
    /// Another node of the job, which can read them by itself.
    Peer,
}

/// How long reads wait for a server.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// While an archive is opened: the user waits, and may have mistyped a name.
    opening: Patience,
    opening_in_background: Patience,
    /// Afterward.
    reading: Patience,
    /// A slow answer is better than another request.
    reading_in_background: Patience,
}

const LIMITS: Limits = Limits {
    opening: Patience::of(Duration::from_secs(8)),
    opening_in_background: BRIEF,
    reading: Patience::of(Duration::from_secs(60)),
    reading_in_background: Patience { attempt: Duration::from_secs(30), ..BRIEF },
};

const BRIEF: Patience = Patience::of(Duration::from_secs(5));

/// Which of the validators of a server must stay as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validators {
    /// The ETag, or else the time.
    All,
    /// The time, if the server names one, or else the ETag.
    Time,
    /// The time, if the server names an ETag as well; else only the size.
    TimeOrSize,
}

impl Validators {
    /// What of `version` must stay.
    fn of(self, version: &Version) -> Version {
        let has_time = version.modified.is_some();
        match self {
            Self::Time if has_time => Version { etag: None, ..version.clone() },
            Self::TimeOrSize if has_time && version.etag.is_some() => Self::Time.of(version),
            Self::TimeOrSize => Version::default(),
            Self::All | Self::Time => version.clone(),
        }
    }
}

/// Whether requests are pointless, because nothing waits for their answers any more.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// Ends all requests of this process, and refuses more.
pub fn end() {
    HAS_ENDED.store(true, Ordering::SeqCst);
    http::end();
}

/// Which version of a file a server has (RFC 9110, section 8.8). A server may name neither.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// The ETag, with its quotes.
    pub etag: Option<String>,
    /// The text of Last-Modified.
    pub modified: Option<String>,
}

/// Identifies what the URL with this name leads to, without its version: with other settings, an
/// object may be in another store.
pub fn identity_of(name: &str) -> Vec<u8> {
    let url = url::of_name(name);
    match url.starts_with("s3://") {
        true => object(&url, environment, |_| true),
        false => url.into_bytes(),
    }
}

/// Like `identity_of`, without what differs each time: the parameters of a signature, passwords,
/// temporary keys. An ETag is unique only within one resource (RFC 9110, section 8.8.3), and a
/// query can choose the resource. So what archfs keeps of an archive for another day is kept under
/// this identity.
pub fn lasting_identity(name: &str) -> Vec<u8> {
    let url = url::of_name(name);
    match url.starts_with("s3://") {
        true => lasting_object(&url, environment),
        false => url::without_signature(&url).into_bytes(),
    }
}

fn environment(variable: &str) -> String {
    std::env::var(variable).unwrap_or_default()
}

fn lasting_object(url: &str, variable: impl Fn(&str) -> String) -> Vec<u8> {
    // Keys that come with a token are for some hours.
    let is_temporary = !variable("AWS_SESSION_TOKEN").is_empty();
    object(url, variable, |name| name != "AWS_ACCESS_KEY_ID" || !is_temporary)
}

/// An object in the store that the variables of the environment choose.
fn object(url: &str, variable: impl Fn(&str) -> String, counts: impl Fn(&str) -> bool) -> Vec<u8> {
    let mut identity = url.as_bytes().to_owned();
    for name in s3::VARIABLES {
        identity.push(0);
        if counts(name) {
            identity.extend(variable(name).bytes());
        }
    }
    identity
}

/// An open file.
#[derive(Debug)]
pub struct RemoteFile {
    name: String,
    server: Server,
    len: u64,
    version: Version,
    /// What each answer is compared with.
    compared: Version,
    limits: Limits,
    /// Whether the archive in it was opened, or all of it is being read for that.
    is_opened: AtomicBool,
    is_read_once: AtomicBool,
    /// Why nothing more is read, if it `is_read_once`.
    gave_up: OnceLock<Error>,
    /// Set once another version was seen. Never cleared.
    has_changed: AtomicBool,
    failing: Failing,
    mirrors: Mirrors,
}

impl RemoteFile {
    /// Opens the file at the URL with this name.
    ///
    /// # Errors
    /// `NotFound` if the server has no such file; `Usage` if it is no valid URL; `Unsupported` if
    /// the server cannot send parts of a file; else `Io`.
    pub fn open(name: &Path, validators: Validators) -> Result<Self> {
        Self::open_at(server_of(name)?, validators, LIMITS)
    }

    /// The same for a file without which archfs does as well.
    pub fn open_briefly(name: &Path) -> Result<Self> {
        let limits = Limits { opening: BRIEF, ..LIMITS };
        Self::open_at(server_of(name)?, Validators::All, limits)
    }

    fn open_at(server: Server, validators: Validators, limits: Limits) -> Result<Self> {
        let name = server.name().to_owned();
        let (failing, mirrors) = (Failing::default(), Mirrors::default());
        let mut outage = Outage::new(limits.opening, &failing);
        // The first byte, because a presigned URL is for GET alone, and because the answer shows
        // whether the server sends parts.
        let mut first = [0];
        let mut wanted = Wanted::new(0, &mut first);
        let Answer { len, version } = attempts(&server, &mirrors, &mut outage, &mut wanted, None)
            .map_err(|error| error.within(&name))?;
        // The reads that follow have all of their time.
        failing.end();
        let compared = validators.of(&version);
        let (is_opened, has_changed) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self {
            name,
            server,
            len,
            version,
            compared,
            limits,
            is_opened,
            is_read_once: AtomicBool::new(false),
            gave_up: OnceLock::new(),
            has_changed,
            failing,
            mirrors,
        })
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The version that was opened.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// Notes that the archive in it was opened, or that all of it is being read for that: later
    /// reads wait longer. If it `is_read_once`, nothing more is read after a reader has waited
    /// without success.
    pub fn note_opened(&self, is_read_once: bool) {
        self.is_opened.store(true, Ordering::Relaxed);
        self.is_read_once.fetch_or(is_read_once, Ordering::Relaxed);
    }

    /// Fills `buffer` with the bytes at `offset`, which the file has. An error that may pass is
    /// tried again for some time, which depends on the `requester`.
    ///
    /// # Errors
    /// `Changed` if the server has another version now; else `Io`.
    pub fn read_exact_at(
        &self,
        buffer: &mut [u8],
        offset: u64,
        requester: Requester,
    ) -> Result<()> {
        if self.has_changed.load(Ordering::Relaxed) {
            return Err(self.mirrors.changed().within(&self.name));
        }
        if let Some(error) = self.gave_up.get() {
            return Err(error.copy());
        }
        if buffer.is_empty() {
            return Ok(());
        }
        let patience = match (requester, self.is_opened.load(Ordering::Relaxed)) {
            (Requester::Reader, false) => self.limits.opening,
            (Requester::Fill | Requester::Peer, false) => self.limits.opening_in_background,
            (Requester::Reader, true) => self.limits.reading,
            (Requester::Fill | Requester::Peer, true) => self.limits.reading_in_background,
        };
        let mut wanted = Wanted::new(offset, buffer);
        let range = wanted.missing();
        let mut outage = Outage::new(patience, &self.failing);
        let opened = Some((&self.compared, self.len));
        let outcome = attempts(&self.server, &self.mirrors, &mut outage, &mut wanted, opened);
        match outcome {
            Ok(Answer { version, .. }) => {
                self.failing.end();
                if self.compared != self.version && version != self.version {
                    self.mirrors.note_allowed(&self.name);
                }
                Ok(())
            }
            Err(error) if error.kind() == Kind::Changed => {
                self.has_changed.store(true, Ordering::Relaxed);
                Err(error.within(&self.name))
            }
            Err(error) => {
                let error = error.with_detail(format_args!("bytes {range:?}")).within(&self.name);
                let is_read_once = self.is_read_once.load(Ordering::Relaxed);
                let has_waited = requester == Requester::Reader;
                if is_read_once && has_waited && error.kind() == Kind::Unreachable {
                    let _ = self.gave_up.set(error.copy());
                }
                Err(error)
            }
        }
    }
}

fn server_of(name: &Path) -> Result<Server> {
    let name = url::text(name);
    Server::of(&name).map_err(|error| error.within(&name))
}

/// Requests of one read that a server has not accepted, and that were changed.
const CHANGES_MAX: u32 = 10;

/// Changes that need not wait for anything.
const CHANGES_AT_ONCE: u32 = 4;

/// Redirects that follow each other.
const REDIRECTS_MAX: u32 = 10;

/// Reads `wanted`, with one request or several: a part may come with each, errors may pass, and a
/// server may accept another request. Returns the last answer. `opened` is the version and the size
/// that were opened.
fn attempts(
    server: &Server,
    mirrors: &Mirrors,
    outage: &mut Outage<'_>,
    wanted: &mut Wanted<'_>,
    opened: Option<(&Version, u64)>,
) -> Result<Answer> {
    let (mut changes, mut redirects, mut others) = (0, 0, Others::default());
    loop {
        let deadline = Deadline::set(outage.ask());
        deadline.skip_addresses(others.addresses());
        let outcome = server.get(wanted, opened, outage, others.connection());
        drop(deadline);
        if outcome.is_ok() {
            others.end(mirrors, server.name());
        }
        let failure = match outcome {
            Ok(answer) if wanted.missing().is_empty() || answer.len == 0 => return Ok(answer),
            Ok(_) => Failure::passing("the server sends less than archfs asked for"),
            Err(failure) => failure,
        };
        match failure {
            Failure::Passing { why, .. } if HAS_ENDED.load(Ordering::SeqCst) => {
                return Err(Error::new(Kind::Interrupted, why));
            }
            // The rest, at once.
            Failure::Passing { why, .. } if outage.is_paid() => {
                log::debug!("{}: {why}; asking for the rest", server.name());
            }
            Failure::Passing { why, after } => {
                redirects = 0;
                let level = if outage.becomes_long() { log::Level::Warn } else { log::Level::Info };
                log::log!(level, "{}: {why}; trying again", server.name());
                if !outage.wait(after) {
                    return Err(match HAS_ENDED.load(Ordering::SeqCst) {
                        true => Error::new(Kind::Interrupted, why),
                        false => server.unreachable(outage.describe(&why)),
                    });
                }
            }
            // At another host, with other credentials, or with the time of the server.
            Failure::Denied(denial) => {
                let is_redirect = denial.status.is_redirection();
                (changes, redirects) = match is_redirect {
                    true => (changes, redirects + 1),
                    false => (changes + 1, 0),
                };
                let may_change = changes <= CHANGES_MAX && redirects <= REDIRECTS_MAX;
                let is_changed = may_change && server.adapt(&denial);
                let mut may_wait =
                    || is_redirect || changes <= CHANGES_AT_ONCE || outage.wait(None);
                if !is_changed || !may_wait() {
                    server.forget_redirect(denial.generation);
                    return Err(server.denied(*denial));
                }
            }
            // From another of the servers behind the name.
            Failure::Other(version) => {
                redirects = 0;
                let asks_again =
                    others.add(version, mirrors) || (mirrors.disagree() && outage.wait(None));
                if !asks_again {
                    return Err(mirrors.changed());
                }
            }
            Failure::Final(error) if error.kind() == Kind::Changed => {
                return Err(mirrors.changed());
            }
            Failure::Final(error) => return Err(error),
        }
    }
}
