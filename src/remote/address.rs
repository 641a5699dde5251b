//! URLs of HTTP servers, as they are asked for: those that users name, and those of redirects.
//!
//! The path and the query of a whole URL stay as they are, because a store may have a key with `..`
//! in it, and a signature covers it. Only a relative redirect is resolved (RFC 3986, section 5.2).

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use url::Url;

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

pub(super) struct Address {
    /// Without user, password and fragment.
    pub(super) url: String,
    /// User and password, encoded for the header.
    pub(super) basic: Option<String>,
}

impl Address {
    /// The address in `text`. `None` if it is no valid URL of an HTTP server.
    pub(super) fn of(text: &str) -> Option<Self> {
        // As in browsers: a text file may have it behind a URL.
        let text = text.trim().replace(['\t', '\r', '\n'], "");
        let (scheme, rest) = text.split('#').next()?.split_once("://")?;
        let (authority, path) = rest.split_at(rest.find(['/', '?', '\\']).unwrap_or(rest.len()));
        let mut server = Url::parse(&format!("{scheme}://{authority}")).ok()?;
        if authority.is_empty() || !is_http(&server) {
            return None;
        }
        // A token may stand alone (RFC 7617, section 2).
        let user = format!("{}:{}", server.username(), server.password().unwrap_or_default());
        let encoded = || BASE64_STANDARD.encode(percent_decode_str(&user).collect::<Vec<u8>>());
        let basic = (user != ":").then(encoded);
        without_user(&mut server);
        let slash = if path.starts_with('/') { "" } else { "/" };
        let path = utf8_percent_encode(path, UNWRITABLE);
        let server = server.as_str().trim_end_matches('/');
        Some(Self { url: format!("{server}{slash}{path}"), basic })
    }
}

/// The URL of a redirect from `from` to `location`. `None` if it is not valid, or if the connection
/// is less safe, because others could then change the bytes on their way.
pub(super) fn redirected(from: &str, location: &str) -> Option<String> {
    let from = Url::parse(from).ok()?;
    let url = match Address::of(location) {
        Some(address) => address.url,
        None => {
            let mut found = from.join(location).ok().filter(is_http)?;
            without_user(&mut found);
            found.set_fragment(None);
            found.into()
        }
    };
    (from.scheme() == "http" || url.starts_with("https:")).then_some(url)
}

fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

fn without_user(url: &mut Url) {
    // Both succeed for a URL that has a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
}

/// A server, as far as it matters for what may be sent to it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) scheme: String,
    pub(super) host: String,
    port: u16,
}

impl Origin {
    pub(super) fn of(url: &str) -> Option<Self> {
        let url = Url::parse(url).ok()?;
        let (scheme, host) = (url.scheme().to_owned(), url.host_str()?.to_owned());
        Some(Self { scheme, host, port: url.port_or_known_default()? })
    }

    /// Whether secrets for `own`, which the user named, may be sent to this server: it is the same,
    /// by a connection that is as safe.
    pub(super) fn is_as_good_as(&self, own: &Self) -> bool {
        let is_safer = self.scheme == "https" && own.scheme == "http";
        self == own || (is_safer && self.host == own.host)
    }
}

/// Scheme, host and port of `url`, as at its start.
pub(super) fn origin(url: &str) -> Option<String> {
    Some(Url::parse(url).ok()?.origin().ascii_serialization())
}

/// Host and port of `url`, for messages.
pub(super) fn host(url: &str) -> String {
    let origin = origin(url).unwrap_or_default();
    origin.split("://").last().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn paths_stay_as_they_are() {
        let url = |text: &str| Some(Address::of(text)?.url);
        for (text, expected) in [
            ("HTTPS://Host/A", "https://host/A"),
            ("https://host", "https://host/"),
            ("https://host?a=/b", "https://host/?a=/b"),
            ("https://host:443/a", "https://host/a"),
            ("http://host:443/a#b", "http://host:443/a"),
            (
                "http://h/a/../b/./c//d%2e%2F+e;f?g=../h'",
                "http://h/a/../b/./c//d%2e%2F+e;f?g=../h'",
            ),
            ("http://h/a b\u{fc}|", "http://h/a%20b%C3%BC%7C"),
            ("http://[::1]:8/a\r\n", "http://[::1]:8/a"),
            ("http://xn--mnchen-3ya.de/a", "http://xn--mnchen-3ya.de/a"),
            ("http://under_score-.host./a", "http://under_score-.host./a"),
            ("http://u:p@[::1]\\a@b", "http://[::1]/%5Ca@b"),
        ] {
            assert_eq!(url(text).as_deref(), Some(expected), "{text}");
            assert!(expected.parse::<ureq::http::Uri>().is_ok(), "{expected}");
        }
        for text in
            ["http://", "http:///a", "http:/h/a", "ftp://h/a", "file:///a", "http://u@/a", "/a"]
        {
            assert_eq!(url(text), None, "{text}");
        }
    }

    #[test]
    fn users_and_passwords_are_decoded() {
        let basic = |text: &str| Address::of(text).unwrap().basic;
        let encoded = |text: &str| Some(BASE64_STANDARD.encode(text));
        assert_eq!(basic("https://token@host/a"), encoded("token:"));
        assert_eq!(basic("https://u:p%40%2F:s@s@host/a"), encoded("u:p@/:s@s"));
        assert_eq!(basic("https://:p@host/a"), encoded(":p"));
        assert_eq!(basic("https://host/a@b"), None);
    }

    #[test]
    fn locations_may_be_relative_but_not_less_safe() {
        let from = "https://host:8/d/e/a?x=/y";
        for (location, expected) in [
            ("https://other/b/../c?c#d", Some("https://other/b/../c?c")),
            ("HTTPS://u:p@Other/b", Some("https://other/b")),
            ("//other/b", Some("https://other/b")),
            ("/b?u=http://z", Some("https://host:8/b?u=http://z")),
            ("b c", Some("https://host:8/d/e/b%20c")),
            ("../b", Some("https://host:8/d/b")),
            ("../../../b/./c", Some("https://host:8/b/c")),
            ("?z", Some("https://host:8/d/e/a?z")),
            ("", Some("https://host:8/d/e/a?x=/y")),
            ("http://host:8/b", None),
            ("HTTP://other/b", None),
            ("file:///etc/passwd", None),
            ("FILE:/etc/passwd", None),
            ("ftp://other/b", None),
            ("s3://bucket/b", None),
            ("https://", None),
            ("data:,b", None),
        ] {
            assert_eq!(redirected(from, location).as_deref(), expected, "{location}");
        }
        let upgraded = redirected("http://host/a", "https://host/a");
        assert_eq!(upgraded.as_deref(), Some("https://host/a"));
        assert_eq!(redirected("http://h/a", "HTTP://o/b").as_deref(), Some("http://o/b"));
    }

    #[test]
    fn secrets_go_to_the_same_server_and_never_to_a_less_safe_one() {
        for (own, other, expected) in [
            ("https://host/a", "https://host:443/b", true),
            ("http://host/a", "https://host/a", true),
            ("https://host/a", "http://host/a", false),
            ("https://host/a", "https://host:444/a", false),
            ("https://host/a", "https://host.evil/a", false),
            ("http://host/a", "https://host.evil/a", false),
        ] {
            let (own, other) = (Origin::of(own).unwrap(), Origin::of(other).unwrap());
            assert_eq!(other.is_as_good_as(&own), expected, "{own:?} {other:?}");
        }
        assert_eq!(host("https://h:8/a@b?c"), "h:8");
    }
}
