//! Where a file is, and what archfs changes about its requests if the server does not accept them.

use std::fmt;
use std::ops::Range;

use ureq::http::StatusCode;

use super::Version;
use super::address::{self, Address, Origin};
use super::answer::{self, Answer, Wanted};
use super::failure::{Denial, Failure};
use super::http::{Request, Slot};
use super::outage::Outage;
use super::s3::{self, Environment, Object};
use crate::error::{Error, Kind, Result};
use crate::sync::Mutex;
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
                Some(host) => failure.of(&format!("redirected to {host}")),
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

    /// The error for requests that failed until the patience ended, with what may help.
    pub(super) fn unreachable(&self, why: String) -> Error {
        let error = Error::new(Kind::Unreachable, why);
        match &self.file {
            Location::Object(object) if !object.has_endpoint() => error.with_hint(s3::NO_ENDPOINT),
            _ => error.with_hint(
                "run curl on this node to see what the server answers; http_proxy and https_proxy \
                 name a proxy",
            ),
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
            Location::Plain(Plain { address: Address { basic: Some(_), .. }, .. }) => {
                "the server may not know this user and password"
            }
            Location::Plain(_) => {
                "a presigned URL may have expired, or the server asks for a password: \
                 https://USER:PASSWORD@HOST/..."
            }
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

/// A file at an HTTP or HTTPS URL.
struct Plain {
    address: Address,
    /// Held for a copy or a change.
    state: Mutex<Redirect>,
}

#[derive(Default)]
struct Redirect {
    /// Where the server has sent archfs. It may be a presigned URL that expires.
    target: Option<String>,
    /// How often `target` has changed.
    generation: u64,
}

impl fmt::Debug for Plain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // All the rest may have secrets.
        formatter.write_str("Plain")
    }
}

impl Redirect {
    fn set(&mut self, target: Option<String>) {
        self.target = target;
        self.generation += 1;
    }
}

impl Plain {
    /// The file at `url`.
    fn of(url: &str) -> Result<Self> {
        let address = Address::of(url).ok_or_else(|| Error::new(Kind::Usage, "not a valid URL"))?;
        Ok(Self { address, state: Mutex::default() })
    }

    /// Its URL, without what must not be shown, except for the query.
    fn url(&self) -> &str {
        &self.address.url
    }

    /// The request for `range` of `version`.
    fn request(&self, range: &Range<u64>, version: Option<&Version>) -> Request {
        let state = self.state.lock();
        let Address { url, basic } = &self.address;
        let mut request =
            Request::new(state.target.as_ref().unwrap_or(url).clone(), range, version);
        request.is_redirected = state.target.is_some();
        request.generation = state.generation;
        if let Some(basic) = basic.as_ref().filter(|_| is_own(&request.url, url)) {
            request.headers.push(("authorization", format!("Basic {basic}")));
        }
        request
    }

    /// Follows a redirect, or returns to the URL itself if the answer of what it led to is an
    /// error. Returns whether there is something else to try.
    fn adapt(&self, denial: &Denial) -> bool {
        let mut state = self.state.lock();
        if state.generation != denial.generation {
            // Another thread has done it since the request was made.
            return true;
        }
        if !denial.status.is_redirection() {
            let is_elsewhere = state.target.is_some();
            state.set(None);
            return is_elsewhere;
        }
        let target = denial.target();
        let is_found = target.is_some();
        state.set(target);
        is_found
    }

    /// Returns to the URL itself, because what it led to failed.
    fn forget_redirect(&self, generation: u64) {
        let mut state = self.state.lock();
        if state.target.is_some() && state.generation == generation {
            state.set(None);
        }
    }
}

fn is_own(url: &str, own: &str) -> bool {
    Origin::of(url).zip(Origin::of(own)).is_some_and(|(url, own)| url.is_as_good_as(&own))
}
