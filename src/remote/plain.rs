//! A file at an HTTP or HTTPS URL.

use std::fmt;
use std::ops::Range;

use super::Version;
use super::address::{Address, Origin};
use super::failure::Denial;
use super::http::Request;
use crate::error::{Error, Kind, Result};
use crate::sync::Mutex;

/// A file at a URL.
pub(super) struct Plain {
    address: Address,
    /// Held for a copy or a change.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
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

impl State {
    fn set(&mut self, target: Option<String>) {
        self.target = target;
        self.generation += 1;
    }
}

impl Plain {
    /// The file at `url`.
    pub(super) fn of(url: &str) -> Result<Self> {
        let address = Address::of(url).ok_or_else(|| Error::new(Kind::Usage, "not a valid URL"))?;
        Ok(Self { address, state: Mutex::default() })
    }

    /// Its URL, without what must not be shown, except for the query.
    pub(super) fn url(&self) -> &str {
        &self.address.url
    }

    /// The request for `range` of `version`.
    pub(super) fn request(&self, range: &Range<u64>, version: Option<&Version>) -> Request {
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
    pub(super) fn adapt(&self, denial: &Denial) -> bool {
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
    pub(super) fn forget_redirect(&self, generation: u64) {
        let mut state = self.state.lock();
        if state.target.is_some() && state.generation == generation {
            state.set(None);
        }
    }
}

fn is_own(url: &str, own: &str) -> bool {
    Origin::of(url).zip(Origin::of(own)).is_some_and(|(url, own)| url.is_as_good_as(&own))
}
