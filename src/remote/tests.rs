//! Every failure of the network and of a server, at a server that fails as the test says.

use std::ops::Range;
use std::time::Instant;

use self::server::{ETAG, Manner, Reply, Request, TestServer};
use super::mirrors::OTHERS_MAX;
use super::s3::Environment;
use super::*;
use crate::sync::{Arc, Mutex, thread};

mod lies;
mod server;

/// Time that reads of these tests are repeated.
const SHORT: Duration = Duration::from_secs(2);

/// Reads are repeated for this time. No request of these tests takes too long.
const fn limits(time: Duration) -> Limits {
    all(Patience { repeated: time, attempt: Duration::from_secs(30) })
}

/// The same limits at all times.
const fn all(patience: Patience) -> Limits {
    Limits {
        opening: patience,
        opening_in_background: patience,
        reading: patience,
        reading_in_background: patience,
    }
}

const NO_ENVIRONMENT: fn(&str) -> Option<String> = |_| None;

fn bytes() -> Vec<u8> {
    (0..200_000_u32).map(|at| (at * 7 % 251) as u8 ^ (at >> 11) as u8).collect()
}

fn open(server: &TestServer, path: &str) -> Result<RemoteFile> {
    open_with(&server.url(path), Validators::All, limits(SHORT))
}

fn open_with(url: &str, validators: Validators, limits: Limits) -> Result<RemoteFile> {
    let server = Server::with(url, Environment::of(NO_ENVIRONMENT))?;
    RemoteFile::open_at(server, validators, limits)
}

/// Reads and compares some bytes.
fn read(file: &RemoteFile, range: Range<usize>) -> Result<()> {
    let mut found = vec![0; range.len()];
    file.read_exact_at(&mut found, range.start as u64, Requester::Reader)?;
    assert!(found == bytes()[range.clone()], "{range:?}");
    Ok(())
}

/// A server that answers as `fault` says, or rightly if that returns `None`.
fn faulty(fault: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static) -> TestServer {
    TestServer::start(move |request| {
        fault(request).unwrap_or_else(|| Reply::part(request, &bytes()))
    })
}

/// > Every request names its ETag (`If-Match`) or, if the server names no strong one, its time.
/// > archfs compares the size and the ETag, or else the time, with each answer.
#[test]
fn reads_parts_of_the_version_that_was_opened() {
    let server = faulty(|_| None);
    let file = open(&server, "/a.tar").unwrap();
    assert_eq!((file.len(), file.is_empty()), (200_000, false));
    assert_eq!(file.version().etag.as_deref(), Some(ETAG));
    for range in [0..1, 5..100_000, 199_999..200_000, 7..7] {
        read(&file, range).unwrap();
    }
    let requests = server.requests();
    assert_eq!(requests.len(), 4, "one for each read");
    assert_eq!(requests[2].header("range"), "bytes=5-99999");
    assert_eq!(requests[2].header("if-match"), ETAG);
    assert_eq!(requests[2].header("accept-encoding"), "identity");
    assert_eq!(requests[0].header("if-match"), "");
}

/// The answer to `request`, with another body.
fn with_body(request: &Request, change: impl Fn(&[u8]) -> Vec<u8>) -> Reply {
    let reply = Reply::part(request, &bytes());
    Reply { body: change(&reply.body), ..reply }
}

type Fault = fn(&Request) -> Reply;

/// > A request that may succeed later is repeated: no connection, no answer in time, an answer that
/// > is cut off, has another range or arrives at less than 16 KiB/s, and the statuses 408, 425, 429
/// > and 5xx except 501.
///
/// > After 60 seconds the read fails with EIO, and a later read tries again. While archives are
/// > opened, that time is 8 seconds.
#[test]
fn failures_that_pass_are_repeated_and_no_byte_is_wrong() {
    let passing: [(&str, Fault); 12] = [
        ("503", |_| Reply::status(503)),
        ("500", |_| Reply::status(500)),
        ("502", |_| Reply::status(502)),
        ("408", |_| Reply::status(408)),
        ("429", |_| Reply::status(429)),
        ("cut", |request| Reply::part(request, &bytes()).sent(Manner::Cut(1))),
        ("cut at once", |request| Reply::part(request, &bytes()).sent(Manner::Cut(0))),
        ("reset", |request| Reply::part(request, &bytes()).sent(Manner::Reset(1))),
        ("too long", |request| with_body(request, |body| [body, b"more"].concat())),
        ("too short", |request| with_body(request, |body| body[1..].to_vec())),
        ("another part", |request| {
            Reply::part(request, &bytes()).with("Content-Range", "bytes 0-1/200000")
        }),
        ("no part", |request| {
            let mut reply = Reply::part(request, &bytes());
            reply.headers.retain(|(name, _)| name != "Content-Range");
            reply
        }),
    ];
    // Together, because each takes its time.
    thread::scope(|scope| {
        for (what, fault) in passing {
            scope.spawn(move || check_passing(what, fault));
        }
    });
}

fn check_passing(what: &str, fault: Fault) {
    let server = faulty(move |request| [1, 2, 4].contains(&request.number).then(|| fault(request)));
    let file = open_with(&server.url("/a"), Validators::All, limits(30 * SHORT)).unwrap();
    for range in [10..1000, 1000..2000] {
        read(&file, range).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    assert_eq!(server.requests().len(), 6, "{what}");
    assert_eq!((LIMITS.reading.repeated.as_secs(), LIMITS.opening.repeated.as_secs()), (60, 8));
    // It goes on as long as the caller has patience.
    let server = faulty(move |request| (request.number > 0).then(|| fault(request)));
    let file = open(&server, "/a").unwrap();
    let start = Instant::now();
    let error = read(&file, 10..1000).unwrap_err();
    assert!((SHORT..10 * SHORT).contains(&start.elapsed()), "{what}: {:?}", start.elapsed());
    assert_eq!(error.kind(), Kind::Unreachable, "{what}");
    assert!(error.to_string().contains("; failing for "), "{what}: {error}");
}

/// It sends nothing, or a byte at a time.
#[test]
fn a_server_that_is_too_slow_is_asked_again() {
    for manner in [Manner::Never, Manner::Drip(Duration::from_millis(700))] {
        let server = faulty(move |request| {
            (request.number == 1).then(|| Reply::part(request, &bytes()).sent(manner))
        });
        let patience = Patience { repeated: 30 * SHORT, attempt: Duration::from_secs(1) };
        let file = open_with(&server.url("/a"), Validators::All, all(patience)).unwrap();
        let start = Instant::now();
        let mut found = vec![0; 20_000];
        file.read_exact_at(&mut found, 0, Requester::Reader).unwrap();
        assert!(found == bytes()[..20_000]);
        assert!(server.requests().len() >= 3, "{manner:?}");
        assert!(start.elapsed() < Duration::from_secs(15), "{manner:?}");
    }
}

/// > `Retry-After` is obeyed.
#[test]
fn the_server_says_when_to_ask_again() {
    let server = faulty(|request| {
        (request.number == 1).then(|| Reply::status(429).with("Retry-After", "1"))
    });
    let file = open(&server, "/a").unwrap();
    let start = Instant::now();
    read(&file, 0..10).unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1));
}

/// > All bytes of an archive are of the version that was opened.
///
/// > If the server names neither, only the size is compared.
#[test]
fn another_version_is_never_mixed_with_the_opened_one() {
    // Another server of the same name may have the opened version, unless the size differs.
    let all = 2 + OTHERS_MAX as usize + 1;
    let changed: [(&str, usize, Fault); 6] = [
        ("412", all, |_| Reply::status(412)),
        ("416", 3, |_| Reply::status(416).with("Content-Range", "bytes */5")),
        ("ETag", all, |request| Reply::part(request, &bytes()).with("ETag", "\"version 2\"")),
        ("size", 3, |request| Reply::part(request, &bytes()[..150_000])),
        ("time", all, |request| {
            let mut reply = Reply::part(request, &bytes()).with("Last-Modified", "Tue");
            reply.headers.retain(|(name, _)| name != "ETag");
            reply
        }),
        ("whole file", all, |_| {
            Reply { body: bytes(), ..Reply::status(200) }.with("ETag", "\"version 2\"")
        }),
    ];
    for (what, requests, fault) in changed {
        let server = faulty(move |request| {
            let reply = Reply::part(request, &bytes()).with("Last-Modified", "Mon");
            Some(if request.number >= 2 { fault(request) } else { reply })
        });
        let file = open(&server, "/a").unwrap();
        read(&file, 0..10).unwrap();
        for _ in 0..2 {
            let error = read(&file, 0..10).unwrap_err();
            assert_eq!(error.kind(), Kind::Changed, "{what}: {error}");
            assert!(error.to_string().contains("/a: replaced on the server"), "{error}");
        }
        assert_eq!(server.requests().len(), requests, "{what}: it is not asked again");
    }
}

#[test]
fn weak_etags_are_compared_but_not_sent() {
    let date = "Mon, 02 Jan 2023 00:00:00 GMT";
    let server = faulty(move |request| {
        let reply = Reply::part(request, &bytes()).with("ETag", "W/\"1\"");
        Some(reply.with("Last-Modified", date))
    });
    let file = open(&server, "/a").unwrap();
    read(&file, 0..10).unwrap();
    let requests = server.requests();
    assert_eq!(requests[1].header("if-match"), "");
    assert_eq!(requests[1].header("if-unmodified-since"), date);
}

#[test]
fn what_will_not_pass_fails_at_once_in_plain_words() {
    let failing: [(Fault, Kind, &str); 7] = [
        (|_| Reply { body: bytes(), ..Reply::status(200) }, Kind::Io, "sends only whole files"),
        (
            |request| with_body(request, |_| vec![31; 20]).with("Content-Encoding", "gzip"),
            Kind::Io,
            "compresses what it sends (gzip)",
        ),
        (|_| Reply::status(404), Kind::NotFound, "no such file on the server"),
        (|_| Reply::status(403), Kind::Denied, "the server answers 403 Forbidden"),
        (|_| Reply::status(401), Kind::Denied, "the server answers 401 Unauthorized"),
        (|_| Reply::status(418), Kind::Io, "the server answers 418"),
        (|_| Reply::status(302), Kind::Denied, "the server answers 302 Found"),
    ];
    for (fault, kind, text) in failing {
        let server = faulty(move |request| Some(fault(request)));
        let error = open(&server, "/a").unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(server.requests().len(), 1, "{text}");
    }
    let gone = faulty(|request| (request.number > 0).then(|| Reply::status(404)));
    let error = read(&open(&gone, "/a").unwrap(), 0..10).unwrap_err();
    assert_eq!(error.kind(), Kind::Io);
    assert!(error.to_string().contains("not on the server any more"), "{error}");
}

/// Some servers name the format of a compressed file so.
#[test]
fn a_compressed_file_that_is_sent_as_it_is_can_be_read() {
    let server =
        faulty(|request| Some(Reply::part(request, &bytes()).with("Content-Encoding", "x-gzip")));
    read(&open(&server, "/a.tar.gz").unwrap(), 5..100).unwrap();
}

#[test]
fn an_empty_file_has_no_first_byte() {
    let server = faulty(|request| Some(Reply::part(request, b"")));
    assert_eq!(open(&server, "/a").unwrap().len(), 0);
}

#[test]
fn a_server_that_cannot_be_reached_is_named() {
    let server = faulty(|_| None);
    let url = server.url("/a");
    drop(server);
    // The socket may take a moment to close.
    thread::sleep(Duration::from_millis(50));
    for (url, text) in [
        (url.as_str(), "cannot connect: Connection refused"),
        ("http://no-such-host.invalid/a", "known"),
    ] {
        let limits = limits(Duration::from_millis(100));
        let error = open_with(url, Validators::All, limits).unwrap_err();
        assert_eq!(error.kind(), Kind::Unreachable);
        assert!(error.to_string().contains(text), "{error}");
        assert!(error.to_string().starts_with(url), "{error}");
    }
    for url in ["http://", "http:///a", "https://[::1/a", "http://a b/c", "s3://bucket"] {
        let error = RemoteFile::open(Path::new(url), Validators::All).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{url}: {error}");
    }
}

/// > A password, a signature or a session token goes only to the server that the user named, or
/// > another one of the same store.
#[test]
fn a_password_is_sent_to_its_own_server_only() {
    let other = faulty(|_| None);
    let target = other.url("/elsewhere?signature=1");
    let server = faulty(move |request| {
        let is_allowed = request.header("authorization") == "Basic bWU6cEBzcw==";
        let status = if is_allowed { 302 } else { 401 };
        Some(Reply::status(status).with("Location", &target))
    });
    let url = server.url("/a").replace("://", "://me:p%40ss@");
    let file = open_with(&url, Validators::All, limits(SHORT)).unwrap();
    read(&file, 0..10).unwrap();
    read(&file, 0..10).unwrap();
    assert_eq!(server.requests().len(), 1, "the target is remembered");
    let requests = other.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| request.header("authorization").is_empty()));
    assert_eq!(requests[0].path, "/elsewhere?signature=1");
}

/// > If the target of a redirect expires or fails, archfs asks for a new one.
#[test]
fn redirects_are_followed_and_asked_for_again_when_their_target_expires() {
    for status in [301, 302, 303, 307, 308] {
        let server = faulty(move |request| match request.path.as_str() {
            "/d/a" => {
                Some(Reply::status(status).with("Location", &format!("b?{}", request.number)))
            }
            // What was given out first is good for two requests.
            "/d/b?0" if request.number > 2 => Some(Reply::status(403)),
            path => {
                assert!(path.starts_with("/d/b?"), "{path}");
                None
            }
        });
        let file = open(&server, "/d/a").unwrap();
        for _ in 0..4 {
            read(&file, 5..60).unwrap();
        }
        let paths: Vec<_> = server.requests().into_iter().map(|request| request.path).collect();
        let expected = ["/d/a", "/d/b?0", "/d/b?0", "/d/b?0", "/d/a", "/d/b?4", "/d/b?4", "/d/b?4"];
        assert_eq!(paths, expected, "{status}");
    }
}

/// A redirector may choose another mirror each time.
#[test]
fn a_redirect_to_another_version_is_asked_for_again() {
    let server = faulty(|request| match (request.path.as_str(), request.number) {
        ("/d/a", 3) => Some(Reply::status(302).with("Location", "other")),
        ("/d/a", _) => Some(Reply::status(302).with("Location", "good")),
        ("/d/good", 2) => Some(Reply::status(403)),
        ("/d/other", _) => Some(Reply::status(412)),
        _ => None,
    });
    read(&open(&server, "/d/a").unwrap(), 5..60).unwrap();
    let paths: Vec<_> = server.requests().into_iter().map(|request| request.path).collect();
    let expected = ["/d/a", "/d/good", "/d/good", "/d/a", "/d/other", "/d/a", "/d/good"];
    assert_eq!(paths, expected);
}

#[test]
fn a_relative_redirect_leads_where_it_says() {
    for (location, path) in [
        ("../plain/a", "/plain/a"),
        ("./b/../a", "/d/a"),
        ("../../../a", "/a"),
        ("?key=1", "/d/redirect?key=1"),
        ("a b", "/d/a%20b"),
    ] {
        let server = faulty(move |request| {
            let is_first = request.path == "/d/redirect";
            is_first.then(|| Reply::status(307).with("Location", location))
        });
        read(&open(&server, "/d/redirect").unwrap(), 5..60).unwrap();
        let paths: Vec<_> = server.requests().into_iter().map(|request| request.path).collect();
        assert_eq!(paths, ["/d/redirect", path, path]);
    }
}

#[test]
fn a_scheme_may_be_in_capitals() {
    let server = faulty(|_| None);
    let location = server.url("/b").replace("http", "HTTP");
    let first = faulty(move |_| Some(Reply::status(302).with("Location", &location)));
    let url = first.url("/a").replace("http", "Http");
    let found = Server::with(&url, Environment::of(NO_ENVIRONMENT)).unwrap();
    read(&RemoteFile::open_at(found, Validators::All, limits(SHORT)).unwrap(), 5..60).unwrap();
    assert_eq!(server.requests().len(), 2);
}

/// > Up to 10 redirects in a row are followed, to http:// and https://, and none from https to
/// > http.
#[test]
fn ten_redirects_are_followed_and_eleven_are_not() {
    let chain = |len: usize| {
        faulty(move |request| {
            let hop: usize = request.path[1..].parse().unwrap();
            let next = format!("/{}", hop + 1);
            (hop < len).then(|| Reply::status(302).with("Location", &next))
        })
    };
    // Without patience, because a redirect need not wait for anything.
    let open = |server: &TestServer| {
        let found = Server::with(&server.url("/0"), Environment::of(NO_ENVIRONMENT)).unwrap();
        RemoteFile::open_at(found, Validators::All, limits(Duration::ZERO))
    };
    let server = chain(10);
    read(&open(&server).unwrap(), 5..60).unwrap();
    assert_eq!(server.requests().len(), 12);
    let server = chain(11);
    let error = open(&server).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.hint().unwrap().contains("no end of redirects"), "{error:?}");
    assert_eq!(server.requests().len(), 11);
}

#[test]
fn redirects_to_other_kinds_of_urls_are_refused() {
    for location in
        ["file:///etc/passwd", "FILE:/etc/passwd", "ftp://host/a", "s3://b/a", "https://"]
    {
        let server = faulty(move |_| Some(Reply::status(302).with("Location", location)));
        let error = open(&server, "/a").unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.hint().unwrap().contains("http:// and https://"), "{error:?}");
        assert_eq!(server.requests().len(), 1, "{location}");
    }
}

/// Where nothing listens, at an unknown name, and at a server that refuses.
#[test]
fn errors_behind_a_redirect_name_its_host_and_no_secret() {
    let (closed, denied) = (faulty(|_| None), faulty(|_| Some(Reply::status(403))));
    let host = closed.host();
    drop(closed);
    let refused = format!("redirected to {}: the server answers 403", denied.host());
    for (host, text) in [
        (host.clone(), format!("redirected to {host}: cannot connect: ")),
        ("no-such-host.invalid".into(), "redirected to no-such-host.invalid: the name of".into()),
        (denied.host(), refused),
    ] {
        let location = format!("http://me:SECRET@{host}/SECRET?sig=SECRET");
        let server = faulty(move |_| Some(Reply::status(307).with("Location", &location)));
        let plain = Server::with(&server.url("/a"), Environment::of(NO_ENVIRONMENT)).unwrap();
        let object = Server::with("s3://bucket/a", with_key(&server, &key("first"))).unwrap();
        for server in [plain, object] {
            let name = server.name().to_owned();
            let error =
                RemoteFile::open_at(server, Validators::All, limits(Duration::from_millis(100)))
                    .unwrap_err();
            let shown = format!("{error:#} {:?}", error.hint());
            assert!(shown.starts_with(&format!("{name}: {text}")), "{shown}");
            assert!(!shown.contains("SECRET"), "{shown}");
        }
    }
}

/// > If the target of a redirect expires or fails, archfs asks for a new one.
#[test]
fn a_target_that_goes_away_is_replaced() {
    let is_gone = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&is_gone);
    let first = faulty(move |request| {
        let reset = Reply::part(request, &bytes()).sent(Manner::Reset(0));
        gone.load(Ordering::Relaxed).then_some(reset)
    });
    let second = faulty(|_| None);
    let targets = Arc::new(Mutex::new(first.url("/bucket/a%20b.tar")));
    let target = Arc::clone(&targets);
    let store = faulty(move |_| {
        Some(error_of_s3(307, "TemporaryRedirect").with("Location", &target.lock()))
    });
    let plain = open(&store, "/a").unwrap();
    let object = open_object(&store, &key("first")).unwrap();
    for file in [&plain, &object] {
        read(file, 0..10).unwrap();
    }
    *targets.lock() = second.url("/bucket/a%20b.tar");
    is_gone.store(true, Ordering::Relaxed);
    for file in [&plain, &object] {
        for range in [0..10, 10..20] {
            read(file, range).unwrap();
        }
    }
    assert_eq!(second.requests().len(), 4);
}

/// The environment of a user of `server` as an S3 store, with this key.
fn with_key(server: &TestServer, key: &Arc<Mutex<String>>) -> Environment {
    let (host, key) = (server.host(), Arc::clone(key));
    Environment::of(move |name| match name {
        "AWS_ENDPOINT_URL" => Some(format!("http://{host}")),
        "AWS_ACCESS_KEY_ID" => Some(key.lock().clone()),
        "AWS_SECRET_ACCESS_KEY" => Some("secret".to_owned()),
        "AWS_SESSION_TOKEN" => Some("token".to_owned()),
        _ => None,
    })
}

fn key(name: &str) -> Arc<Mutex<String>> {
    Arc::new(Mutex::new(name.to_owned()))
}

fn error_of_s3(status: u16, code: &str) -> Reply {
    let body = format!("<?xml version='1.0'?><Error><Code>{code}</Code></Error>");
    Reply { body: body.into_bytes(), ..Reply::status(status) }
}

fn open_object(server: &TestServer, key: &Arc<Mutex<String>>) -> Result<RemoteFile> {
    let server = Server::with("s3://bucket/a b.tar", with_key(server, key))?;
    RemoteFile::open_at(server, Validators::All, limits(SHORT))
}

#[test]
fn objects_are_asked_for_with_a_signature() {
    let server = faulty(|_| None);
    let file = open_object(&server, &key("first")).unwrap();
    read(&file, 0..10).unwrap();
    let request = server.requests().remove(1);
    assert_eq!(request.path, "/bucket/a%20b.tar");
    assert_eq!(request.header("host"), server.host());
    assert_eq!(request.header("x-amz-security-token"), "token");
    let signed = "SignedHeaders=host;if-match;range;x-amz-content-sha256;x-amz-date;\
                  x-amz-security-token,";
    assert!(request.header("authorization").contains(signed), "{request:?}");
    assert!(request.header("authorization").contains("Credential=first/"));
}

/// > If credentials of S3 are refused, archfs reads them again.
#[test]
fn credentials_that_expire_are_read_again() {
    let expired = key("");
    let now = Arc::clone(&expired);
    let server = faulty(move |request| {
        let expired = now.lock().clone();
        let is_expired = !expired.is_empty() && request.header("authorization").contains(&expired);
        is_expired.then(|| error_of_s3(400, "ExpiredToken"))
    });
    let key = key("first");
    let file = open_object(&server, &key).unwrap();
    read(&file, 0..10).unwrap();
    *expired.lock() = "first".to_owned();
    let error = read(&file, 0..10).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    let text = format!("{error:#} {}", error.hint().unwrap());
    assert!(text.contains("400 Bad Request (ExpiredToken)"), "{text}");
    assert!(text.contains("renew the credentials"), "{text}");
    assert!(!text.contains("first") && !text.contains("secret"), "{text}");
    *key.lock() = "second".to_owned();
    read(&file, 0..10).unwrap();
    let last = server.requests().pop().unwrap();
    assert!(last.header("authorization").contains("Credential=second/"));
}

#[test]
fn a_clock_that_is_wrong_is_corrected() {
    let server = faulty(|request| {
        let there = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
        let said = request.header("x-amz-date");
        let is_right = said[..11] == there.strftime("%Y%m%dT%H").to_string()[..11];
        let date = there.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        (!is_right).then(|| error_of_s3(403, "RequestTimeTooSkewed").with("Date", &date))
    });
    let file = open_object(&server, &key("first")).unwrap();
    read(&file, 0..10).unwrap();
    assert_eq!(server.requests().len(), 3, "corrected once");
}

#[test]
fn a_store_may_name_another_region_or_host() {
    let server = faulty(|request| {
        let is_right = request.header("authorization").contains("/eu-north-1/s3/");
        let reply = error_of_s3(400, "AuthorizationHeaderMalformed");
        (!is_right).then(|| reply.with("x-amz-bucket-region", "eu-north-1"))
    });
    read(&open_object(&server, &key("first")).unwrap(), 0..10).unwrap();
    assert_eq!(server.requests().len(), 3);
}

/// > A password, a signature or a session token goes only to the server that the user named, or
/// > another one of the same store.
#[test]
fn a_store_may_name_another_host_which_gets_no_credentials() {
    let second = faulty(|_| None);
    let url = second.url("/elsewhere/a?X-Amz-Signature=1");
    let first = faulty(move |_| Some(error_of_s3(307, "TemporaryRedirect").with("Location", &url)));
    read(&open_object(&first, &key("first")).unwrap(), 0..10).unwrap();
    assert_eq!((first.requests().len(), second.requests().len()), (1, 2));
    for request in second.requests() {
        assert_eq!(request.path, "/elsewhere/a?X-Amz-Signature=1");
        let sent: Vec<_> = request.headers.keys().map(String::as_str).collect();
        let is_secret = |name: &&str| name.starts_with("x-amz-") || *name == "authorization";
        assert!(!sent.iter().any(is_secret), "{sent:?}");
    }
    assert_eq!(first.requests()[0].header("x-amz-security-token"), "token");
    let denying = faulty(|_| Some(error_of_s3(403, "AccessDenied")));
    let url = denying.url("/bucket/a");
    let first = faulty(move |_| Some(error_of_s3(307, "TemporaryRedirect").with("Location", &url)));
    let error = open_object(&first, &key("first")).unwrap_err();
    assert!(error.hint().unwrap().contains("AWS_ENDPOINT_URL"), "{error:?}");
    assert!(error.to_string().contains(&denying.host()), "{error}");
    let own = faulty(|request| {
        let reply = error_of_s3(307, "TemporaryRedirect");
        (request.number == 0).then(|| reply.with("Location", "/bucket/a%20b.tar?x"))
    });
    read(&open_object(&own, &key("first")).unwrap(), 0..10).unwrap();
    let last = own.requests().pop().unwrap();
    assert_eq!((last.header("x-amz-security-token"), &*last.path), ("token", "/bucket/a%20b.tar"));
}

/// A fifth of all answers fails in some way, to eight readers.
#[test]
fn many_readers_of_an_unreliable_server_get_no_wrong_byte() {
    let server = TestServer::start(|request| {
        let reply = Reply::part(request, &bytes());
        match request.number.wrapping_mul(2_654_435_761) >> 7 & 31 {
            0 => Reply::status(503),
            1 => Reply::status(500),
            2 => reply.sent(Manner::Cut(50)),
            3 => reply.sent(Manner::Reset(1000)),
            4 => reply.with("Content-Range", "bytes 1-2/200000"),
            5 => Reply::status(429),
            _ => reply,
        }
    });
    // A request of a busy machine may take as long as SHORT.
    let file = open_with(&server.url("/a"), Validators::All, limits(30 * SHORT)).unwrap();
    thread::scope(|scope| {
        for reader in 0..8_usize {
            let file = &file;
            scope.spawn(move || {
                let mut random = reader + 1;
                for _ in 0..40 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let start = (random >> 33) % 150_000;
                    read(file, start..start + 1 + (random >> 20) % 40_000).unwrap();
                }
            });
        }
    });
}

#[test]
fn an_object_is_another_one_in_another_store_but_not_with_another_temporary_key() {
    let identity = |endpoint: &str, key: &str, token: &str| {
        lasting_object("s3://bucket/key", |name| {
            let value = match name {
                "AWS_ENDPOINT_URL" => endpoint,
                "AWS_ACCESS_KEY_ID" => key,
                "AWS_SESSION_TOKEN" => token,
                _ => "",
            };
            value.to_owned()
        })
    };
    assert_ne!(identity("a", "", ""), identity("b", "", ""));
    assert_ne!(identity("a", "k", ""), identity("a", "l", ""));
    assert_eq!(identity("a", "k", "t"), identity("a", "l", "u"));
}
