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
use super::outage::{Deadline, Outage, paid_by};
use crate::error::{Error, Kind, reason};

/// The largest size of a file in bytes: the kernel has none beyond it (off_t).
const LEN_MAX: u64 = i64::MAX as u64;

/// What the header of an answer says of the file.
pub(super) struct Answer {
    pub(super) len: u64,
    pub(super) version: Version,
}

/// The bytes that a read wants, and how many of them have arrived.
pub(super) struct Wanted<'b> {
    offset: u64,
    buffer: &'b mut [u8],
    filled: usize,
}

impl<'b> Wanted<'b> {
    /// All of `buffer`, for the bytes at `offset`.
    pub(super) fn new(offset: u64, buffer: &'b mut [u8]) -> Self {
        Self { offset, buffer, filled: 0 }
    }

    pub(super) fn missing(&self) -> Range<u64> {
        let start = self.offset.saturating_add(self.filled as u64);
        start..start.saturating_add((self.buffer.len() - self.filled) as u64)
    }
}

/// Reads what `wanted` misses, which `request` asked for, from `response`, or the first part of it.
/// `opened` is the version and the size that were opened; `None` while the file is being opened.
pub(super) fn read(
    response: Response<Body>,
    request: &Request,
    wanted: &mut Wanted<'_>,
    opened: Option<(&Version, u64)>,
    outage: &mut Outage<'_>,
) -> Result<Answer, Failure> {
    let (head, body) = response.into_parts();
    let version = version(&head.headers);
    match check_status(&head, &version, request, opened)? {
        AnswerKind::Range => {}
        AnswerKind::EmptyFile => return Ok(Answer { len: 0, version }),
        AnswerKind::NoFile => return Err(no_file(body, opened.is_some())),
        AnswerKind::Denial => return Err(Failure::Denied(Box::new(denial(&head, body, request)))),
    }
    let missing = wanted.missing();
    let (sent, len) = check_range(&head.headers, &missing, opened.map(|(_, len)| len))?;
    check_length(&head.headers, &sent)?;
    let framing = ["content-length", "transfer-encoding"];
    let is_framed = framing.iter().any(|name| head.headers.contains_key(*name));
    read_body(body, is_framed, &sent, wanted, outage)?;
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
fn check_status(
    head: &Parts,
    version: &Version,
    request: &Request,
    opened: Option<(&Version, u64)>,
) -> Result<AnswerKind, Failure> {
    let (status, headers) = (head.status, &head.headers);
    let is_other = opened.is_some_and(|(opened, _)| differs(opened, version));
    let found_len = content_range(headers).and_then(|(_, len)| len);
    let has_other_len = opened.is_some_and(|(_, len)| found_len.is_some_and(|found| found != len));
    match status {
        StatusCode::PARTIAL_CONTENT | StatusCode::OK if has_other_len => Err(Failure::changed()),
        StatusCode::PARTIAL_CONTENT | StatusCode::OK if is_other => {
            Err(Failure::Other(version.clone()))
        }
        StatusCode::PARTIAL_CONTENT => Ok(AnswerKind::Range),
        // `rclone serve s3` sends a part with this status.
        StatusCode::OK if content_range(headers).is_some() => Ok(AnswerKind::Range),
        // It did send parts, as some other server behind the same name may.
        StatusCode::OK if opened.is_some() => {
            Err(Failure::passing("the server sends all of the file instead of a part"))
        }
        StatusCode::OK => Err(Failure::unusable(
            "the server sends only whole files".to_owned(),
            "download it, or use a server that answers requests for ranges",
        )),
        StatusCode::PRECONDITION_FAILED if opened.is_some() => Err(Failure::Other(version.clone())),
        StatusCode::RANGE_NOT_SATISFIABLE => match opened {
            // Of an empty file there is no first byte.
            None if content_range(headers) == Some((None, Some(0))) => Ok(AnswerKind::EmptyFile),
            None => Err(unexpected(status)),
            Some(_) if has_other_len => Err(Failure::changed()),
            // The file has the bytes.
            Some(_) => Err(busy(status, headers)),
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

/// Fails unless the server sends the start of `range`, or more, of a file of `opened_len` bytes, if
/// that is known. Returns the range that it sends, and the size of the file.
fn check_range(
    headers: &HeaderMap,
    range: &Range<u64>,
    opened_len: Option<u64>,
) -> Result<(Range<u64>, u64), Failure> {
    let Some((Some(sent), len)) = content_range(headers) else {
        return Err(Failure::passing("the server does not say which part it sends"));
    };
    let Some(len) = len.or(opened_len) else {
        return Err(Failure::unusable(
            "the server does not say how large the file is".to_owned(),
            "download it, or use another server",
        ));
    };
    if len > LEN_MAX {
        let context = format!("the server names an impossible size of the file: {len} bytes");
        return Err(Failure::Final(Error::new(Kind::Io, context)));
    }
    if sent.start != range.start || sent.is_empty() || sent.end > len {
        return Err(Failure::passing("the server sends another part than archfs asked for"));
    }
    Ok((sent, len))
}

/// Fails if the server compresses the range that it sends, or sends another number of bytes.
fn check_length(headers: &HeaderMap, sent: &Range<u64>) -> Result<(), Failure> {
    let sent_len = (sent.end - sent.start).to_string();
    let len = headers.get("content-length");
    let is_as_long = len.is_some_and(|len| *len == *sent_len);
    // Some servers name the format of a compressed file in this way, and send it as it is.
    let encoding = headers.get("content-encoding").filter(|it| *it != "identity" && !is_as_long);
    if let Some(encoding) = encoding {
        let encoding = encoding.to_str().unwrap_or("?");
        return Err(Failure::unusable(
            format!("the server compresses what it sends ({encoding})"),
            "switch off compression of this file at the server",
        ));
    }
    match len.is_none() || is_as_long {
        true => Ok(()),
        false => Err(Failure::passing("the server sends a part of another length than it says")),
    }
}

/// The longest wait for the end of a body whose bytes have all arrived.
const END_MAX: Duration = Duration::from_secs(1);

/// Reads the missing bytes of `wanted` from `body`, which has those of `sent`. `is_framed` says
/// that its end can be seen while the connection is open.
fn read_body(
    body: Body,
    is_framed: bool,
    sent: &Range<u64>,
    wanted: &mut Wanted<'_>,
    outage: &mut Outage<'_>,
) -> Result<(), Failure> {
    let missing = wanted.missing();
    let end = sent.end.min(missing.end);
    let end = wanted.filled + usize::try_from(end - missing.start).unwrap_or(usize::MAX);
    let (start, before) = (wanted.filled, outage.clone());
    // A server that stops sending is asked again.
    let mut until = Instant::now() + SILENCE_MAX;
    let mut body = body.into_reader();
    while wanted.filled < end {
        Deadline::change(until.min(outage.until()));
        match body.read(&mut wanted.buffer[wanted.filled..end]) {
            Ok(0) => return Err(Failure::passing("the connection was closed too early")),
            Ok(read) => {
                wanted.filled += read;
                outage.receive(read);
                until += paid_by(read);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(match ureq::Error::from(error) {
                    ureq::Error::Timeout(_) => Failure::passing("the server sends too slowly"),
                    error => Failure::passing(format!("the connection broke: {}", reason(&error))),
                });
            }
        }
    }
    // The connection is used again only after the end of the body was read. If the connection ends
    // with the body, or the body is longer than what was asked for, it is not.
    if sent.end > missing.end || !is_framed {
        return Ok(());
    }
    Deadline::change(Instant::now() + END_MAX);
    match body.read(&mut [0]) {
        // All bytes have arrived before an error.
        Ok(0) | Err(_) => Ok(()),
        Ok(_) => {
            // The body is not what the header says, so none of it counts.
            wanted.filled = start;
            *outage = before;
            Err(Failure::passing("the server sends more than it says"))
        }
    }
}

fn version(headers: &HeaderMap) -> Version {
    let text = |name: &str| Some(headers.get(name)?.to_str().ok()?.trim().to_owned());
    Version { etag: text("etag"), modified: text("last-modified") }
}

/// Whether `found` is another version than `opened`. What one of them does not name is not
/// compared.
fn differs(opened: &Version, found: &Version) -> bool {
    let is_weak = |etag: &str| etag.starts_with("W/");
    // Apache names a version weakly while it is new.
    let opaque = |etag: &str| etag.strip_prefix("W/").unwrap_or(etag).to_owned();
    let etags = opened.etag.as_ref().zip(found.etag.as_ref());
    let times = opened.modified.as_ref().zip(found.modified.as_ref());
    match (etags, times) {
        // Servers that share the load may have other times for it.
        (Some((opened, found)), _) if opaque(opened) == opaque(found) => false,
        // Weak ones may differ although the bytes do not (RFC 9110, section 8.8.1).
        (Some((opened, found)), Some(times)) if is_weak(opened) && is_weak(found) => {
            times.0 != times.1
        }
        (Some(_), _) => true,
        (None, times) => times.is_some_and(|(opened, found)| opened != found),
    }
}

/// The range in Content-Range, unless the server has none, and the size of the file, unless it does
/// not know that (RFC 9110, section 14.4).
fn content_range(headers: &HeaderMap) -> Option<(Option<Range<u64>>, Option<u64>)> {
    let text = headers.get("content-range")?.to_str().ok()?;
    let (range, len) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let len = if len == "*" { None } else { Some(number(len)?) };
    if range == "*" {
        return Some((None, len));
    }
    let (first, last) = range.split_once('-')?;
    let range = number(first)?..number(last)?.checked_add(1)?;
    Some((Some(range), len))
}

/// The number `text`, or the largest one.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
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
            ("bytes 0-0/10", Some((Some(0..1), Some(10)))),
            ("bytes 5-9/18446744073709551615", Some((Some(5..10), Some(u64::MAX)))),
            ("bytes 5-9/18446744073709551616", Some((Some(5..10), Some(u64::MAX)))),
            ("bytes */0", Some((None, Some(0)))),
            ("bytes 0-1/*", Some((Some(0..2), None))),
            ("bytes 0-18446744073709551615/9", None),
            ("bytes 0-1/+9", None),
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
        let weak = version(Some("W/\"a\""), Some("Mon"));
        assert!(!differs(&weak, &version(Some("W/\"b\""), Some("Mon"))));
        assert!(differs(&weak, &version(Some("W/\"b\""), Some("Tue"))));
        assert!(differs(&weak, &version(Some("W/\"b\""), None)));
        assert!(differs(&weak, &version(Some("\"b\""), Some("Mon"))));
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
