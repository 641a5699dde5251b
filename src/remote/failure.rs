//! Why a request failed, and whether that may pass.

use std::time::Duration;

use jiff::Timestamp;
use ureq::http::StatusCode;

use super::Version;
use super::address::redirected;
use crate::error::{Error, Kind, reason};

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It may pass. The server asks to wait for the time `after`.
    Passing { why: String, after: Option<Duration> },
    /// The server does not accept the request as it is.
    Denied(Box<Denial>),
    /// The server names another version of the file, of the same size.
    Other(Version),
    /// It will not pass.
    Final(Error),
}

/// A request that was not accepted.
#[derive(Debug)]
pub(super) struct Denial {
    /// What was asked for, and in which state of the server.
    pub(super) url: String,
    pub(super) generation: u64,
    /// As in `Request`.
    pub(super) is_redirected: bool,
    pub(super) status: StatusCode,
    pub(super) code: Option<String>,
    /// Where it has sent the client.
    pub(super) location: Option<String>,
    pub(super) region: Option<String>,
    /// The time at the server.
    pub(super) date: Option<Timestamp>,
}

impl Denial {
    /// Where a redirect leads, if archfs may follow it.
    pub(super) fn target(&self) -> Option<String> {
        redirected(&self.url, self.location.as_deref()?)
    }
}

impl Failure {
    /// The same, with the name of a server that the user did not name: one that archfs was sent to,
    /// or a proxy.
    pub(super) fn of(self, server: &str) -> Self {
        match self {
            Self::Passing { why, after } => {
                Self::Passing { why: format!("{server}: {why}"), after }
            }
            Self::Final(error) => Self::Final(error.within(server)),
            other => other,
        }
    }

    pub(super) fn passing(why: impl Into<String>) -> Self {
        Self::Passing { why: why.into(), after: None }
    }

    /// The server has another version of the file.
    pub(super) fn changed() -> Self {
        Self::Final(Error::new(Kind::Changed, "changed"))
    }

    /// The server cannot do what archfs needs.
    pub(super) fn unusable(context: String, hint: &str) -> Self {
        Self::Final(Error::new(Kind::Io, context).with_hint(hint))
    }
}

impl From<ureq::Error> for Failure {
    fn from(error: ureq::Error) -> Self {
        use ureq::{Error, Timeout};
        let untrusted = |why: String| {
            // The first bytes of its answer are text, and no record of TLS.
            if why.contains("InvalidContentType") {
                let context = "the server does not speak https:// there";
                let error = crate::error::Error::new(Kind::Io, context);
                return Self::Final(error.with_hint("try http://, which nothing protects"));
            }
            let context = format!("no secure connection: {why}");
            let error = crate::error::Error::new(Kind::Io, context);
            Self::Final(error.with_hint(
                "if the server has a certificate of your site, set SSL_CERT_FILE (for s3:// also \
                 AWS_CA_BUNDLE) to the certificates of your site",
            ))
        };
        match error {
            Error::HostNotFound => Self::passing("the name of the server is not known"),
            Error::Timeout(Timeout::Resolve) => {
                Self::passing("the name of the server cannot be looked up in time")
            }
            Error::Timeout(Timeout::Connect) => Self::passing("cannot connect in time"),
            Error::Timeout(_) => Self::passing("the server does not answer in time"),
            Error::LargeResponseHeader(..) | Error::Protocol(_) => {
                Self::passing("the server does not answer in valid HTTP")
            }
            Error::Rustls(error) => untrusted(error.to_string()),
            Error::Tls(error) => untrusted(error.to_owned()),
            Error::Io(error) => {
                let is_of_tls = |text: String| {
                    text.contains("certificate") || text.contains("InvalidContentType")
                };
                match error.get_ref().is_some_and(|inner| is_of_tls(inner.to_string())) {
                    true => untrusted(reason(&error)),
                    false => Self::passing(format!("cannot connect: {}", reason(&error))),
                }
            }
            Error::BadUri(_) | Error::Http(_) => {
                Self::Final(crate::error::Error::new(Kind::Usage, "not a valid URL"))
            }
            Error::ConnectProxyFailed(why) => Self::Final(
                crate::error::Error::new(Kind::Io, format!("refused: {why}"))
                    .with_hint("name hosts that need no proxy in NO_PROXY"),
            ),
            error => Self::passing(format!("the connection failed: {}", reason(&error))),
        }
    }
}
