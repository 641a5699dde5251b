//! A file at an HTTP or HTTPS URL.

use std::borrow::Cow;
use std::ops::Range;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use ureq::http::Uri;

use super::Version;
use super::answer::Denial;
use super::http::Request;
use crate::error::{Error, Kind, Result};
use crate::sync::Mutex;

/// Redirects that are followed one after the other.
const REDIRECTS_MAX: u32 = 10;

/// What a URL must not have but people write in it.
const UNWRITABLE: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A file at a URL.
#[derive(Debug)]
pub(super) struct Plain {
    /// Without user, password and fragment.
    url: String,
    /// User and password, encoded for the header.
    basic: Option<String>,
    /// Held for a copy or a change.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Where the server has sent archfs. It may be a presigned URL that expires.
    target: Option<String>,
    redirects: u32,
}

impl Plain {
    /// The file at `url`.
    ///
    /// # Errors
    /// `Usage` if it is not valid.
    pub(super) fn of(url: &str) -> Result<Self> {
        let invalid = || Error::new(Kind::Usage, "not a valid URL");
        let url = url.split('#').next().unwrap_or_default();
        let (scheme, rest) = url.split_once("://").ok_or_else(invalid)?;
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let slash = if path.starts_with('/') { "" } else { "/" };
        let path = utf8_percent_encode(path, UNWRITABLE);
        let url = format!("{scheme}://{host}{slash}{path}");
        let parsed: Uri = url.parse().map_err(|_| invalid())?;
        if parsed.host().is_none_or(str::is_empty) {
            return Err(invalid());
        }
        let basic =
            (!user.is_empty()).then(|| BASE64_STANDARD.encode(Cow::from(percent_decode_str(user))));
        Ok(Self { url, basic, state: Mutex::default() })
    }

    /// The request for `range` of `version`.
    pub(super) fn request(&self, range: &Range<u64>, version: Option<&Version>) -> Request {
        let target = self.state.lock().target.clone();
        let is_own = target.as_ref().is_none_or(|target| origin(target) == origin(&self.url));
        let url = target.unwrap_or_else(|| self.url.clone());
        let mut request = Request::new(url, range, version);
        if let Some(basic) = self.basic.as_ref().filter(|_| is_own) {
            request.headers.push(("authorization", format!("Basic {basic}")));
        }
        request
    }

    /// Notes that a request was answered.
    pub(super) fn note_success(&self) {
        self.state.lock().redirects = 0;
    }

    /// Follows a redirect, or returns to the URL itself if what it led to is not accepted. Returns
    /// whether there is something else to try.
    pub(super) fn adapt(&self, denial: &Denial) -> bool {
        let mut state = self.state.lock();
        state.redirects += 1;
        if state.redirects > REDIRECTS_MAX {
            state.redirects = 0;
            return false;
        }
        if !denial.status.is_redirection() {
            return state.target.take().is_some();
        }
        let from = state.target.as_deref().unwrap_or(&self.url);
        let target = denial.location.as_deref().and_then(|location| resolved(from, location));
        // Nobody between the server and archfs may change the bytes afterwards.
        let is_safe = |target: &String| {
            target.starts_with("https://")
                || (target.starts_with("http://") && from.starts_with("http://"))
        };
        state.target = target.filter(is_safe);
        state.target.is_some()
    }
}

/// Scheme and host of `url`.
fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let rest = &url[start..];
    &url[..start + rest.find(['/', '?']).unwrap_or(rest.len())]
}

/// `location`, which may be relative, as a URL (RFC 3986, section 5.2). A relative one with dots is
/// left to the server.
fn resolved(from: &str, location: &str) -> Option<String> {
    let location = location.split('#').next()?;
    let (scheme, _) = from.split_once("://")?;
    Some(if location.contains("://") && !location.starts_with('/') {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{}{location}", origin(from))
    } else {
        let path = from.split('?').next()?;
        let directory = &path[..=path.rfind('/').filter(|&at| at >= origin(from).len())?];
        format!("{directory}{location}")
    })
}
