//! A file at an HTTP or HTTPS URL.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use ureq::http::Uri;

use super::Version;
use super::failure::Denial;
use super::http::{Request, origin};
use crate::error::{Error, Kind, Result};
use crate::sync::Mutex;

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
pub(super) struct Plain {
    /// Without user, password and fragment.
    url: String,
    /// User and password, encoded for the header.
    basic: Option<String>,
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
        // A token may stand alone (RFC 7617, section 2).
        let colon = if user.contains(':') { "" } else { ":" };
        let user = format!("{user}{colon}");
        let encoded = || BASE64_STANDARD.encode(Cow::from(percent_decode_str(&user)));
        let basic = (user != ":").then(encoded);
        Ok(Self { url, basic, state: Mutex::default() })
    }

    /// The request for `range` of `version`.
    pub(super) fn request(&self, range: &Range<u64>, version: Option<&Version>) -> Request {
        let state = self.state.lock();
        let url = state.target.clone().unwrap_or_else(|| self.url.clone());
        let mut request = Request::new(url, range, version);
        request.is_redirected = state.target.is_some();
        request.generation = state.generation;
        if let Some(basic) = self.basic.as_ref().filter(|_| self.is_own(&request.url)) {
            request.headers.push(("authorization", format!("Basic {basic}")));
        }
        request
    }

    /// Whether `url` leads to the server that the user named, by a connection that is as safe.
    fn is_own(&self, url: &str) -> bool {
        let (Some((scheme, host)), Some((other, wanted))) = (server(url), server(&self.url)) else {
            return false;
        };
        (scheme == other && host == wanted)
            || (is_safer(scheme, other) && same_name(&host, &wanted))
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
        let location = denial.location.as_deref();
        let target = location.and_then(|location| resolved(&denial.url, location));
        // Nobody between the server and archfs may change the bytes afterwards.
        let was_safe = denial.url.starts_with("https://");
        let target = target.filter(|target| !was_safe || target.starts_with("https://"));
        let is_found = target.is_some();
        state.set(target);
        is_found
    }

    /// Returns to the URL itself, because what it led to does not answer.
    pub(super) fn note_outage(&self, generation: u64) {
        let mut state = self.state.lock();
        if state.target.is_some() && state.generation == generation {
            state.set(None);
        }
    }
}

/// Scheme, and host with its port, in lower case.
fn server(url: &str) -> Option<(&str, String)> {
    let uri: Uri = url.parse().ok()?;
    let scheme = url.split("://").next()?;
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some((scheme, format!("{}:{port}", uri.host()?.to_ascii_lowercase())))
}

fn is_safer(scheme: &str, than: &str) -> bool {
    scheme == "https" && than == "http"
}

fn same_name(host: &str, other: &str) -> bool {
    let name = |host: &str| host.rsplit_once(':').map(|(name, _)| name.to_owned());
    name(host) == name(other)
}

/// `location`, which may be relative, as a URL (RFC 3986, section 5.2). A relative one with dots is
/// left to the server.
fn resolved(from: &str, location: &str) -> Option<String> {
    let location = location.split('#').next()?;
    let (scheme, _) = from.split_once("://")?;
    let is_whole = ["http://", "https://"].iter().any(|scheme| location.starts_with(scheme));
    let found = if is_whole {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{}{location}", origin(from)?)
    } else {
        let (path, start) = (from.split('?').next()?, origin(from)?.len());
        let directory = &path[..=path.rfind('/').filter(|&at| at >= start)?];
        format!("{directory}{location}")
    };
    Some(utf8_percent_encode(&found, UNWRITABLE).to_string())
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn locations_may_be_relative() {
        let from = "https://host:8/d/a?x=/y";
        for (location, expected) in [
            ("http://other/b?c#d", "http://other/b?c"),
            ("//other/b", "https://other/b"),
            ("/b?u=http://z", "https://host:8/b?u=http://z"),
            ("b c", "https://host:8/d/b%20c"),
            ("?z", "https://host:8/d/?z"),
        ] {
            assert_eq!(resolved(from, location).as_deref(), Some(expected), "{location}");
        }
    }

    #[test]
    fn passwords_go_to_the_same_server_and_never_to_a_less_safe_one() {
        for (url, other, expected) in [
            ("https://u:p@Host/a", "https://host:443/b", true),
            ("http://u:p@host/a", "https://host/a", true),
            ("https://u:p@host/a", "http://host/a", false),
            ("https://u:p@host/a", "https://host:444/a", false),
            ("https://u:p@host/a", "https://host.evil/a", false),
        ] {
            assert_eq!(Plain::of(url).unwrap().is_own(other), expected, "{url} {other}");
        }
        let basic = |url: &str| Plain::of(url).unwrap().basic;
        assert_eq!(basic("https://token@host/a"), Some(BASE64_STANDARD.encode("token:")));
        assert_eq!(basic("https://host/a"), None);
    }
}
