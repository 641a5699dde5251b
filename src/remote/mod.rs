//! Files on HTTP servers and objects in S3, read by ranges.
//!
//! Invariants: all bytes are of the version that was opened, or the read fails. An error that may
//! pass is tried again as long as the caller allows. No text of an error has a secret of a URL, a
//! key or a token.

use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Kind, Result};
use crate::sync::{AtomicBool, Ordering};
use crate::url;

mod address;
mod answer;
mod failure;
mod http;
mod names;
mod outage;
mod plain;
mod proxy;
mod s3;
mod server;
#[cfg(all(test, not(feature = "model")))]
mod test_server;
#[cfg(all(test, not(feature = "model")))]
mod tests;

use answer::Answer;
use failure::Failure;
use outage::{Failing, Outage};
use server::Server;

/// How long a read is repeated for which a program waits.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The same in the background, where another attempt comes later anyway.
pub const PATIENCE_IN_BACKGROUND: Duration = Duration::from_secs(5);

/// The same while archives are opened, where the user waits and may have mistyped a name.
const PATIENCE_TO_OPEN: Duration = Duration::from_secs(8);

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
    let mut identity = url::of_name(name).into_bytes();
    if identity.starts_with(b"s3://") {
        for name in s3::VARIABLES {
            identity.push(0);
            identity.extend(std::env::var(name).unwrap_or_default().bytes());
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
    /// Set once another version was seen. Never cleared.
    has_changed: AtomicBool,
    failing: Failing,
}

impl RemoteFile {
    /// Opens the file at the URL with this name.
    ///
    /// # Errors
    /// `NotFound` if the server has no such file; `Usage` if it is no valid URL; `Unsupported` if
    /// the server cannot send parts of a file; else `Io`.
    pub fn open(name: &Path) -> Result<Self> {
        Self::open_at(server_of(name)?, PATIENCE_TO_OPEN)
    }

    /// The same for a file without which archfs does as well.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_briefly(name: &Path) -> Result<Self> {
        Self::open_at(server_of(name)?, Duration::ZERO)
    }

    /// The same for a server that is known.
    fn open_at(server: Server, patience: Duration) -> Result<Self> {
        let name = server.name().to_owned();
        let failed = |error: Error| error.within(&name);
        let failing = Failing::default();
        let mut outage = Outage::new(patience, &failing);
        // The first byte, because a presigned URL is for GET alone, and because the answer shows
        // whether the server sends parts.
        let Answer { len, version } =
            attempts(&server, &mut outage, || server.get(&(0..1), None, &mut [0]))
                .map_err(failed)?;
        let has_changed = AtomicBool::new(false);
        Ok(Self { name, server, len, version, has_changed, failing })
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

    /// Fills `buffer` with the bytes at `offset`, which the file has. An error that may pass is
    /// tried again for `patience`.
    ///
    /// # Errors
    /// `Changed` if the server has another version now; else `Io`.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64, patience: Duration) -> Result<()> {
        if self.has_changed.load(Ordering::Relaxed) {
            return Err(self.changed());
        }
        if buffer.is_empty() {
            return Ok(());
        }
        let range = offset..offset.saturating_add(buffer.len() as u64);
        let mut outage = Outage::new(patience, &self.failing);
        let opened = Some((&self.version, self.len));
        let outcome = attempts(&self.server, &mut outage, || {
            self.server.get(&range, opened, buffer).map(drop)
        });
        if outcome.is_ok() {
            self.failing.end();
        }
        outcome.map_err(|error| match error.kind() {
            Kind::Changed => {
                self.has_changed.store(true, Ordering::Relaxed);
                self.changed()
            }
            _ => error.with_detail(format_args!("bytes {range:?}")).within(&self.name),
        })
    }

    fn changed(&self) -> Error {
        let context = format!("{}: replaced on the server since it was opened", self.name);
        Error::new(Kind::Changed, context)
            .with_brief("the archive was replaced on the server")
            .with_hint("mount it again")
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

/// The result of `attempt`, which is repeated after errors that may pass, and with a request that
/// the server may accept.
fn attempts<T>(
    server: &Server,
    outage: &mut Outage<'_>,
    mut attempt: impl FnMut() -> std::result::Result<T, Failure>,
) -> Result<T> {
    let (mut changes, mut redirects) = (0, 0);
    loop {
        let failure = match attempt() {
            Ok(found) => return Ok(found),
            Err(failure) => failure,
        };
        match failure {
            Failure::Passing { why, .. } if HAS_ENDED.load(Ordering::SeqCst) => {
                return Err(Error::new(Kind::Interrupted, why));
            }
            Failure::Passing { why, after } => {
                redirects = 0;
                log::info!("{}: {why}; trying again", server.name());
                if !outage.wait(after) {
                    return Err(Error::new(Kind::Io, outage.describe(&why)));
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
            Failure::Final(error) => return Err(error),
        }
    }
}
