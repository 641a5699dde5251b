//! What a server answers to a request for a range of a file, and what that means.

use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use ureq::Body;
use ureq::http::response::Parts;
use ureq::http::{HeaderMap, Response, StatusCode};

use super::Version;
use super::failure::{Denial, Failure};
use super::http::{Request, SILENCE_MAX};
use crate::error::{Error, Kind, reason};

/// What the header of an answer says of the file.
pub(super) struct Answer {
    /// Size of the whole file in bytes.
    pub(super) len: u64,
    pub(super) version: Version,
}

/// Reads the `range` that `request` asked for into `buffer`, which is as long, from `response`.
/// `opened` is the version and the size that were opened; `None` while the file is being opened.
///
/// # Errors
/// What is wrong with the answer.
pub(super) fn read(
    response: Response<Body>,
    request: &Request,
    range: &Range<u64>,
    opened: Option<(&Version, u64)>,
    buffer: &mut [u8],
) -> Result<Answer, Failure> {
    let (head, body) = response.into_parts();
    let version = version(&head.headers);
    match check_status(&head, &version, request, opened)? {
        AnswerKind::Range => {}
        AnswerKind::EmptyFile => return Ok(Answer { len: 0, version }),
        AnswerKind::NoFile => return Err(no_file(body, opened.is_some())),
        AnswerKind::Denial => return Err(Failure::Denied(Box::new(denial(&head, body, request)))),
    }
    check_encoding(&head.headers, range)?;
    let len = check_range(&head.headers, range, opened.map(|(_, len)| len))?;
    read_body(body, buffer)?;
    Ok(Answer { len, version })
}

/// What an answer contains, according to its status.
enum AnswerKind {
    /// A range of the file.
    Range,
    /// Nothing, because the file is empty.
    EmptyFile,
    /// The server has no such file.
    NoFile,
    /// The server does not accept the request as it is.
    Denial,
}

/// What an answer of `version` contains. `opened` is as in `read`.
///
/// # Errors
/// If the status alone says what is wrong.
fn check_status(
    head: &Parts,
    version: &Version,
    request: &Request,
    opened: Option<(&Version, u64)>,
) -> Result<AnswerKind, Failure> {
    let (status, headers) = (head.status, &head.headers);
    let is_other = opened.is_some_and(|(opened, _)| differs(opened, version));
    match status {
        StatusCode::PARTIAL_CONTENT | StatusCode::OK if is_other => Err(Failure::changed()),
        StatusCode::PARTIAL_CONTENT => Ok(AnswerKind::Range),
        // `rclone serve s3` sends a part with this status.
        StatusCode::OK if content_range(headers).is_some() => Ok(AnswerKind::Range),
        StatusCode::OK => Err(Failure::unsupported(
            "the server sends only whole files".to_owned(),
            "download it, or use a server that answers requests for ranges",
        )),
        StatusCode::PRECONDITION_FAILED if opened.is_some() => Err(Failure::changed()),
        StatusCode::RANGE_NOT_SATISFIABLE => match opened {
            // Of an empty file there is no first byte.
            None if content_range(headers) == Some((None, 0)) => Ok(AnswerKind::EmptyFile),
            None => Err(unexpected(status)),
            Some(_) => Err(Failure::changed()),
        },
        StatusCode::NOT_FOUND | StatusCode::GONE if !request.is_redirected => {
            Ok(AnswerKind::NoFile)
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            Err(busy(status, headers))
        }
        _ if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => {
            Err(busy(status, headers))
        }
        StatusCode::NOT_FOUND
        | StatusCode::GONE
        | StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::BAD_REQUEST
        | StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => Ok(AnswerKind::Denial),
        _ => Err(unexpected(status)),
    }
}

/// The failure if the server has no such file. `was_opened` says that it once had one.
fn no_file(body: Body, was_opened: bool) -> Failure {
    let code = element(&start_of(body), "Code").map(|code| format!(" ({code})"));
    let code = code.unwrap_or_default();
    let (kind, context) = match was_opened {
        false => (Kind::NotFound, format!("no such file on the server{code}")),
        true => (Kind::Io, format!("not on the server any more{code}")),
    };
    Failure::Final(Error::new(kind, context))
}

/// What the server says about a `request` that it does not accept.
fn denial(head: &Parts, body: Body, request: &Request) -> Denial {
    // Some servers send UTF-8.
    let text =
        |name: &str| Some(String::from_utf8_lossy(head.headers.get(name)?.as_bytes()).into_owned());
    let body = start_of(body);
    let date = text("date").and_then(|date| rfc2822::parse(&date).ok());
    Denial {
        url: request.url.clone(),
        generation: request.generation,
        is_redirected: request.is_redirected,
        status: head.status,
        code: element(&body, "Code"),
        location: text("location"),
        region: text("x-amz-bucket-region").or_else(|| element(&body, "Region")),
        date: date.map(|date| date.timestamp()),
    }
}

/// Fails if the server compresses the `range` that it sends.
fn check_encoding(headers: &HeaderMap, range: &Range<u64>) -> Result<(), Failure> {
    // Some servers name the format of a compressed file in this way, and send it as it is.
    let wanted_len = range.end.saturating_sub(range.start).to_string();
    let is_as_long = headers.get("content-length").is_some_and(|len| *len == *wanted_len);
    let encoding = headers.get("content-encoding").filter(|it| *it != "identity");
    let Some(encoding) = encoding.filter(|_| !is_as_long) else {
        return Ok(());
    };
    let encoding = encoding.to_str().unwrap_or("?");
    Err(Failure::unsupported(
        format!("the server compresses what it sends ({encoding})"),
        "switch off compression of this file at the server",
    ))
}

/// Fails unless the server sends the `range` of a file of `opened_len` bytes, if that is known.
/// Returns the size of the file.
fn check_range(
    headers: &HeaderMap,
    range: &Range<u64>,
    opened_len: Option<u64>,
) -> Result<u64, Failure> {
    let Some((Some(sent), len)) = content_range(headers) else {
        return Err(Failure::passing("the server does not say which part it sends"));
    };
    if opened_len.is_some_and(|opened_len| opened_len != len) {
        return Err(Failure::changed());
    }
    if sent != *range {
        return Err(Failure::passing("the server sends another part than archfs asked for"));
    }
    Ok(len)
}

/// The lowest rate of a body, in bytes per second. A server that sends less is asked again.
const RATE_MIN: u64 = 16 << 10;

/// Reads all of `body`, which is as long as `buffer`.
fn read_body(body: Body, buffer: &mut [u8]) -> Result<(), Failure> {
    let (start, len) = (Instant::now(), buffer.len());
    let most = SILENCE_MAX + Duration::from_secs(len as u64 / RATE_MIN);
    let mut body = body.into_reader();
    let mut filled = 0;
    while filled < len {
        match body.read(&mut buffer[filled..]) {
            Ok(0) => return Err(Failure::passing("the connection was closed too early")),
            Ok(_) if start.elapsed() > most => {
                return Err(Failure::passing("the server sends too slowly"));
            }
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                let why = format!("the connection broke: {}", reason(&error));
                return Err(Failure::passing(why));
            }
        }
    }
    // The connection is used again only after the end of the body was read.
    match body.read(&mut [0]) {
        Ok(0) => Ok(()),
        _ => Err(Failure::passing("the server sends more than archfs asked for")),
    }
}

/// The version that the headers of an answer name.
fn version(headers: &HeaderMap) -> Version {
    let text = |name: &str| Some(headers.get(name)?.to_str().ok()?.trim().to_owned());
    Version { etag: text("etag"), modified: text("last-modified") }
}

/// Whether `found` is another version than `opened`. What one of them does not name is not
/// compared.
fn differs(opened: &Version, found: &Version) -> bool {
    // Apache names a version weakly while it is new. Servers that share the load may have other
    // times for it.
    let opaque = |etag: &str| etag.strip_prefix("W/").unwrap_or(etag).to_owned();
    if let (Some(opened), Some(found)) = (&opened.etag, &found.etag) {
        return opaque(opened) != opaque(found);
    }
    match (&opened.modified, &found.modified) {
        (Some(opened), Some(found)) => opened != found,
        _ => false,
    }
}

/// The range in Content-Range, unless the server has none, and the size of the file (RFC 9110,
/// section 14.4).
fn content_range(headers: &HeaderMap) -> Option<(Option<Range<u64>>, u64)> {
    let text = headers.get("content-range")?.to_str().ok()?;
    let (range, len) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let len = len.parse().ok()?;
    if range == "*" {
        return Some((None, len));
    }
    let (first, last) = range.split_once('-')?;
    let range = first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?;
    Some((Some(range), len))
}

fn busy(status: StatusCode, headers: &HeaderMap) -> Failure {
    let after = headers.get("retry-after").and_then(|text| text.to_str().ok());
    Failure::Passing { why: answers(status), after: after.and_then(retry_after) }
}

/// The time in Retry-After (RFC 9110, section 10.2.3): seconds or a date.
fn retry_after(text: &str) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = rfc2822::parse(text).ok()?.timestamp();
    Duration::try_from(until.duration_since(Timestamp::now())).ok()
}

fn unexpected(status: StatusCode) -> Failure {
    Failure::Final(Error::new(Kind::Io, answers(status)))
}

/// `the server answers 503 Service Unavailable`.
pub(super) fn answers(status: StatusCode) -> String {
    format!("the server answers {status}").replace(" <unknown status code>", "")
}

/// The start of the body of an error.
fn start_of(body: Body) -> String {
    const MOST: u64 = 8 << 10;
    let mut bytes = Vec::new();
    // What was read before an error may say enough.
    let _ = body.into_reader().take(MOST).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The word in an element of an error of an S3 server, such as `NoSuchBucket` in `Code`.
fn element(body: &str, name: &str) -> Option<String> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    let (word, _) = rest.split_once(&format!("</{name}>"))?;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (!word.is_empty() && word.bytes().all(is_word)).then(|| word.to_owned())
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn reads_the_ranges_that_servers_send() {
        for (text, expected) in [
            ("bytes 0-0/10", Some((Some(0..1), 10))),
            ("bytes 5-9/18446744073709551615", Some((Some(5..10), u64::MAX))),
            ("bytes */0", Some((None, 0))),
            ("bytes 0-18446744073709551615/9", None),
            ("bytes 0-1/*", None),
            ("bytes -1/2", None),
            ("items 0-1/2", None),
            ("", None),
        ] {
            let headers = [("content-range", text)];
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.insert(name, value.parse().unwrap());
            }
            assert_eq!(content_range(&map), expected, "{text}");
        }
    }

    #[test]
    fn versions_differ_only_in_what_both_name() {
        let version = |etag: Option<&str>, modified: Option<&str>| Version {
            etag: etag.map(str::to_owned),
            modified: modified.map(str::to_owned),
        };
        let opened = version(Some("\"a\""), Some("Mon"));
        assert!(!differs(&opened, &opened));
        assert!(!differs(&opened, &version(None, None)));
        assert!(!differs(&version(None, None), &opened));
        assert!(differs(&opened, &version(Some("\"b\""), Some("Mon"))));
        assert!(!differs(&opened, &version(Some("W/\"a\""), Some("Tue"))));
        assert!(differs(&opened, &version(None, Some("Tue"))));
    }

    #[test]
    fn servers_ask_to_wait_in_seconds_or_until_a_date() {
        assert_eq!(retry_after("7"), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("soon"), None);
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT"), None, "in the past");
        let soon = (Timestamp::now() + Duration::from_secs(100)).strftime("%a, %d %b %Y %H:%M:%S");
        let wait = retry_after(&format!("{soon} GMT")).unwrap();
        assert!((90..=100).contains(&wait.as_secs()), "{wait:?}");
    }
}
