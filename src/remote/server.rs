//! Where a file is, and what archfs changes about its requests if the server does not accept them.

use ureq::http::StatusCode;

use super::Version;
use super::address;
use super::answer::{self, Answer, Wanted};
use super::failure::{Denial, Failure};
use super::http::Slot;
use super::outage::Outage;
use super::plain::Plain;
use super::s3::{Environment, Object};
use crate::error::{Error, Kind, Result};
use crate::url;

/// A file and how to ask for it.
#[derive(Debug)]
pub(super) struct Server {
    name: String,
    file: Location,
}

/// What becomes of a connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    Kept,
    /// The next request may reach another server of the same name.
    Closed,
}

#[derive(Debug)]
enum Location {
    Plain(Plain),
    Object(Object),
}

impl Server {
    /// Where the URL with this name leads.
    ///
    /// Fails with `Usage` if it is not valid; `Io` if the configuration of S3 cannot be read.
    pub(super) fn of(name: &str) -> Result<Self> {
        Self::with(name, Environment::of_process())
    }

    /// The same with another `environment`.
    pub(super) fn with(name: &str, environment: Environment) -> Result<Self> {
        let url = url::of_name(name);
        let file = match url.strip_prefix("s3://") {
            Some(path) => Location::Object(Object::of(path, environment)?),
            None => Location::Plain(Plain::of(&url)?),
        };
        Ok(Self { name: name.to_owned(), file })
    }

    /// The name for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Reads what `wanted` misses, or the first part of it. `opened` is the version and the size
    /// that were opened.
    pub(super) fn get(
        &self,
        wanted: &mut Wanted<'_>,
        opened: Option<(&Version, u64)>,
        outage: &mut Outage<'_>,
        connection: Connection,
    ) -> std::result::Result<Answer, Failure> {
        let version = opened.map(|(version, _)| version);
        let range = wanted.missing();
        let mut request = match &self.file {
            Location::Plain(file) => file.request(&range, version),
            Location::Object(object) => object.request(&range, version),
        };
        if connection == Connection::Closed {
            request.headers.push(("connection", "close".to_owned()));
        }
        let _slot = Slot::take()?;
        let answer = request.send();
        let answer = answer.and_then(|it| answer::read(it, &request, wanted, opened, outage));
        answer.map_err(|failure| {
            if !matches!(failure, Failure::Denied(_)) {
                self.forget_redirect(request.generation);
            }
            match self.redirected_to(&request.url) {
                Some(host) => failure.of_redirect_to(&host),
                None => failure,
            }
        })
    }

    /// The host of `url`, if archfs was sent there from another one.
    fn redirected_to(&self, url: &str) -> Option<String> {
        let own = match &self.file {
            Location::Plain(file) => address::host(file.url()),
            Location::Object(object) => address::host(&object.endpoint()),
        };
        Some(address::host(url)).filter(|host| *host != own)
    }

    /// Returns to the URL itself in later requests, because what it led to failed in the state with
    /// this number.
    pub(super) fn forget_redirect(&self, generation: u64) {
        match &self.file {
            Location::Plain(file) => file.forget_redirect(generation),
            Location::Object(object) => object.forget_redirect(generation),
        }
    }

    /// Changes what the next request will be, since the server did not accept one. Returns whether
    /// there is something to change.
    pub(super) fn adapt(&self, denial: &Denial) -> bool {
        match &self.file {
            Location::Plain(file) => file.adapt(denial),
            Location::Object(object) => object.adapt(denial),
        }
    }

    /// The error for a request that was not accepted.
    pub(super) fn denied(&self, denial: Denial) -> Error {
        let status = denial.status;
        let code = denial.code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
        let context = format!("{}{code}", answer::answers(status));
        let hint = match &self.file {
            _ if status.is_redirection() && denial.target().is_some() => {
                "there is no end of redirects"
            }
            _ if status.is_redirection() => {
                "archfs follows redirects to http:// and https://, and none from https to http"
            }
            Location::Plain(_) => "a presigned URL may have expired, or a password is missing",
            Location::Object(object) => object.hint(&denial),
        };
        let kind = if status == StatusCode::NOT_FOUND { Kind::NotFound } else { Kind::Denied };
        let error = Error::new(kind, context).with_hint(hint);
        match self.redirected_to(&denial.url) {
            Some(host) => error.within(format!("redirected to {host}")),
            None => error,
        }
    }
}
