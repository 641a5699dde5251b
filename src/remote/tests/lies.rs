//! Servers that answer slowly, partly or wrongly: every read has the right bytes or an error that
//! says why, in the time that it has.

use std::net::TcpListener;
use std::time::Instant;

use super::super::*;
use super::server::{ETAG, Manner, Reply, Request, TestServer};
use super::{Fault, all, bytes, faulty, limits, open_with, read};
use crate::sync::thread;

/// Time that reads of a server wait that is too slow.
const BRIEFLY: Duration = Duration::from_millis(500);

/// A test fails if a read waits as long as this. Without a deadline, each phase takes longer.
const TOO_LONG: Duration = Duration::from_secs(5);

const SLOW: Duration = Duration::from_millis(700);

/// Opens a file whose reads are repeated as long as a slow machine needs.
fn open(server: &TestServer) -> Result<RemoteFile> {
    open_with(&server.url("/a"), Validators::All, limits(60 * BRIEFLY))
}

/// The same with this time for all of a read.
fn open_for(server: &TestServer, time: Duration) -> Result<RemoteFile> {
    open_with(&server.url("/a"), Validators::All, all(Patience::of(time)))
}

fn part(request: &Request) -> Reply {
    Reply::part(request, &bytes())
}

/// > This time covers all of a read: names, connections, TLS, redirects, headers, bodies and
/// > repetitions.
#[test]
fn every_phase_of_a_request_keeps_to_the_time_of_the_read() {
    let slow: [(&str, &str, Fault); 5] = [
        ("nothing", "does not answer in time", |_| Reply::status(200).sent(Manner::Never)),
        ("a slow header", "does not answer in time", |request| {
            part(request).sent(Manner::DripHeader(SLOW))
        }),
        ("a slow body", "sends too slowly", |request| part(request).sent(Manner::Drip(SLOW))),
        ("a slow error", "403 Forbidden", |_| {
            Reply { body: vec![0; 9000], ..Reply::status(403) }.sent(Manner::Drip(SLOW))
        }),
        ("later", "503 Service Unavailable", |_| Reply::status(503).with("Retry-After", "3600")),
    ];
    thread::scope(|scope| {
        for (what, text, fault) in slow {
            scope.spawn(move || {
                let server = faulty(move |request| Some(fault(request)));
                assert_in_time(what, text, || open_for(&server, BRIEFLY).map(drop));
                let server = faulty(move |request| (request.number > 0).then(|| fault(request)));
                let mut file = open(&server).unwrap();
                file.limits = all(Patience::of(BRIEFLY));
                assert_in_time(what, text, || read(&file, 10..20_000));
            });
        }
        scope.spawn(|| {
            let server = faulty(|request| {
                thread::sleep(SLOW);
                Some(Reply::status(302).with("Location", &format!("/{}", request.number)))
            });
            let what = "slow redirects";
            assert_in_time(what, "in time", || open_for(&server, 2 * BRIEFLY).map(drop));
            assert!(server.requests().len() < 4, "{what}");
        });
        scope.spawn(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("https://{}/a", listener.local_addr().unwrap());
            let limits = all(Patience::of(BRIEFLY));
            let open = || open_with(&url, Validators::All, limits).map(drop);
            assert_in_time("TLS", "cannot connect in time", open);
        });
    });
}

/// `work` fails with this text, and in time.
fn assert_in_time(what: &str, text: &str, work: impl FnOnce() -> Result<()>) {
    let start = Instant::now();
    let error = work().unwrap_err();
    assert!(start.elapsed() < TOO_LONG, "{what}: {:?}: {error}", start.elapsed());
    assert!(error.to_string().contains(text), "{what}: {error}");
}

/// > After 60 seconds the read fails with EIO, and a later read tries again. While archives are
/// > opened, that time is 8 seconds.
///
/// > If archfs is already fetching the bytes in the background, the read waits for that first: at
/// > most 30 seconds, or 5 while archives are opened, and longer if bytes arrive, by the time that
/// > they take at 16 KiB/s.
#[test]
fn reads_wait_longer_once_the_archive_was_opened() {
    let server =
        faulty(|request| (request.number > 0).then(|| Reply::status(200).sent(Manner::Never)));
    let limits = Limits {
        opening: Patience::of(BRIEFLY),
        reading: Patience::of(3 * BRIEFLY),
        ..limits(TOO_LONG)
    };
    let mut file = open(&server).unwrap();
    file.limits = limits;
    assert_in_time("opening", "does not answer in time", || read(&file, 0..10));
    file.failing.end();
    file.note_opened(false);
    let start = Instant::now();
    read(&file, 0..10).unwrap_err();
    assert!(start.elapsed() >= 3 * BRIEFLY, "{:?}", start.elapsed());
    // For a file that is read only once, one read waits.
    file.note_opened(true);
    let first = read(&file, 0..10).unwrap_err();
    let start = Instant::now();
    let second = read(&file, 500..510).unwrap_err();
    assert!(start.elapsed() < BRIEFLY, "{:?}", start.elapsed());
    assert_eq!((second.kind(), second.to_string()), (Kind::Unreachable, first.to_string()));
    assert_eq!((LIMITS.opening.attempt.as_secs(), LIMITS.reading.attempt.as_secs()), (8, 60));
    let background = [LIMITS.reading_in_background, LIMITS.opening_in_background];
    assert_eq!(background.map(|patience| patience.attempt.as_secs()), [30, 5]);
}

/// > If a server sends less than archfs asked for, or the connection breaks, archfs asks for the
/// > rest.
#[test]
fn parts_of_what_was_asked_for_are_used() {
    let server = faulty(|request| {
        let (first, last) = request.range();
        let last = last.min(first + 39_999);
        let mut request = request.clone();
        request.headers.insert("range".into(), format!("bytes={first}-{last}"));
        Some(part(&request))
    });
    let file = open(&server).unwrap();
    read(&file, 10..200_000).unwrap();
    assert_eq!(server.requests().len(), 1 + 5);
    let server = faulty(|request| {
        let reply = part(request);
        let cut = reply.body.len() / 2;
        (request.number % 3 != 0).then(|| reply.sent(Manner::Cut(cut)))
    });
    let file = open(&server).unwrap();
    read(&file, 10..100_010).unwrap();
    let ranges: Vec<_> = server.requests().iter().map(Request::range).collect();
    assert_eq!(ranges[1..], [(10, 100_009), (50_010, 100_009), (75_010, 100_009)]);
}

/// What becomes of a lie.
enum Outcome {
    /// The bytes are right.
    Right,
    /// Another answer is asked for.
    Passing(&'static str),
    /// The read fails at once.
    Final(&'static str),
}

/// > A server that sends anything else than it says is treated like one that does not answer.
#[test]
fn a_lie_costs_no_byte() {
    use Outcome::{Final, Passing, Right};
    let lies: [(&str, Outcome, Fault); 16] = [
        ("all of the file", Passing("all of the file instead of a part"), |_| {
            Reply { body: bytes(), ..Reply::status(200) }.with("ETag", ETAG)
        }),
        ("a part with status 200", Right, |request| Reply { status: 200, ..part(request) }),
        ("another part", Passing("another part"), |request| {
            part(request).with("Content-Range", "bytes 0-999/200000")
        }),
        ("an empty part", Passing("another part"), |request| {
            Reply { body: vec![], ..part(request) }.with("Content-Range", "bytes 10-9/200000")
        }),
        ("a part beyond the end", Passing("another part"), |request| {
            part(request).with("Content-Range", "bytes 10-200000/200000")
        }),
        ("a longer part", Right, |_| {
            let reply = Reply { body: bytes()[10..5000].to_vec(), ..Reply::status(206) };
            reply.with("Content-Range", "bytes 10-4999/200000")
        }),
        ("several parts", Passing("which part"), |_| {
            let reply = Reply { body: bytes()[..300].to_vec(), ..Reply::status(206) };
            reply.with("Content-Type", "multipart/byteranges; boundary=x")
        }),
        ("another length", Passing("another length than it says"), |request| {
            part(request).with("Content-Length", "18446744073709551615")
        }),
        ("a number that is no length", Passing("valid HTTP"), |request| {
            part(request).with("Content-Length", "18446744073709551616")
        }),
        ("unknown size", Right, |request| part(request).with("Content-Range", "bytes 10-999/*")),
        ("compressed", Final("compresses what it sends (gzip)"), |request| {
            Reply { body: vec![31; 20], ..part(request) }.with("Content-Encoding", "gzip")
        }),
        ("no such range", Passing("416 Range Not Satisfiable"), |_| {
            Reply::status(416).with("Content-Range", "bytes */200000")
        }),
        ("a header without an end", Passing("valid HTTP"), |_| {
            Reply::status(206).sent(Manner::EndlessHeader)
        }),
        ("chunks", Right, |request| part(request).sent(Manner::Chunked)),
        ("more in chunks", Passing("more than it says"), |request| {
            let reply = part(request);
            Reply { body: [&reply.body[..], b"more"].concat(), ..reply }.sent(Manner::Chunked)
        }),
        ("the end of the connection", Right, |request| {
            part(request).with("Content-Type", "text/html").sent(Manner::Unframed)
        }),
    ];
    thread::scope(|scope| {
        for (what, outcome, fault) in lies {
            scope.spawn(move || check_lie(what, &outcome, fault));
        }
    });
}

fn check_lie(what: &str, outcome: &Outcome, fault: Fault) {
    let once = faulty(move |request| (request.number == 1).then(|| fault(request)));
    let found = read(&open(&once).unwrap(), 10..1000);
    let requests = once.requests().len();
    let always = faulty(move |request| (request.number > 0).then(|| fault(request)));
    let mut file = open(&always).unwrap();
    file.limits = limits(BRIEFLY);
    let later = read(&file, 10..1000);
    let text = match outcome {
        Outcome::Right => {
            assert_eq!(requests, 2, "{what}");
            return found.and(later).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        Outcome::Passing(text) => {
            assert_eq!(requests, 3, "{what}");
            found.unwrap_or_else(|error| panic!("{what}: {error}"));
            text
        }
        Outcome::Final(text) => {
            assert_eq!(requests, 2, "{what}");
            found.unwrap_err();
            text
        }
    };
    let error = later.unwrap_err();
    assert!(error.to_string().contains(text), "{what}: {error}");
}

#[test]
fn an_impossible_size_is_a_plain_error() {
    let sizes = [
        ("9223372036854775807", Ok(i64::MAX as u64)),
        ("9223372036854775808", Err("an impossible size of the file: 9223372036854775808 bytes")),
        ("18446744073709551615", Err("an impossible size of the file")),
        ("18446744073709551616", Err("an impossible size of the file")),
        ("*", Err("does not say how large the file is")),
    ];
    for (size, expected) in sizes {
        let server = faulty(move |request| {
            Some(part(request).with("Content-Range", &format!("bytes 0-0/{size}")))
        });
        match (open(&server), expected) {
            (Ok(file), Ok(len)) => assert_eq!(file.len(), len),
            (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
            (found, _) => panic!("{size}: {found:?}"),
        }
        assert_eq!(server.requests().len(), 1, "{size}");
    }
}

/// Servers that take turns: each answers as `turn` says, with the number of the request.
fn taking_turns(turn: fn(Reply, usize) -> Reply) -> TestServer {
    faulty(move |request| {
        let reply = turn(part(request), request.number);
        let etag = reply.headers.iter().find(|(name, _)| name == "ETag");
        let is_wanted = |etag: &str| ["", etag].contains(&request.header("if-match"));
        match etag.is_none_or(|(_, etag)| is_wanted(etag)) {
            true => Some(reply),
            false => Some(Reply::status(412)),
        }
    })
}

const MONDAY: &str = "Mon, 02 Jan 2023 00:00:00 GMT";

fn without_etag(mut reply: Reply) -> Reply {
    reply.headers.retain(|(name, _)| name != "ETag");
    reply
}

/// > Several servers behind a name can give an archive different ETags or times. archfs then asks
/// > again, over another connection, until one gives the version that was opened, and logs once
/// > that the mirrors disagree.
///
/// > If weak ETags differ, the time decides.
#[test]
fn mirrors_that_disagree_serve_the_version_that_was_opened() {
    type Turn = fn(Reply, usize) -> Reply;
    let mirrors: [(&str, bool, Turn); 5] = [
        ("two ETags", true, |reply, number| {
            reply.with("ETag", &format!("\"{}\"", number % 2)).with("Last-Modified", MONDAY)
        }),
        ("two ETags and no time", true, |reply, number| {
            reply.with("ETag", &format!("\"{}\"", number % 2))
        }),
        ("two times", true, |reply, number| {
            without_etag(reply).with("Last-Modified", &format!("Mon {}", number % 2))
        }),
        ("two times and one ETag", false, |reply, number| {
            reply.with("Last-Modified", &format!("Mon {}", number % 2))
        }),
        ("weak ETags", false, |reply, number| {
            reply.with("ETag", &format!("W/\"{number}\"")).with("Last-Modified", MONDAY)
        }),
    ];
    for (what, disagree, turn) in mirrors {
        let server = taking_turns(turn);
        let file = open(&server).unwrap();
        for start in 0..10 {
            let found = read(&file, start..start + 1000);
            found.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert_eq!(file.mirrors.disagree(), disagree, "{what}");
        let closed = server.requests().into_iter().any(|it| it.header("connection") == "close");
        assert_eq!(closed, disagree, "{what}");
        assert_eq!(server.requests().len() == 11, !disagree, "{what}");
    }
}

/// > The archive counts as replaced if none does in ten more answers. With `--allow-changes`,
/// > archfs compares size and time, or only the size if the server does not name both ETag and
/// > time. For a copy of `--stage`, it always compares one of the two.
#[test]
fn an_etag_that_never_returns_is_an_error_unless_the_user_allows_it() {
    type Turn = fn(Reply, usize) -> Reply;
    let same_time: Turn =
        |reply, number| reply.with("ETag", &format!("\"{number}\"")).with("Last-Modified", MONDAY);
    let no_time: Turn = |reply, number| reply.with("ETag", &format!("\"{number}\""));
    let only_time: Turn =
        |reply, number| without_etag(reply).with("Last-Modified", &format!("Mon {number}"));
    let other_time: Turn = |reply, number| {
        let time = format!("Mon {number}");
        reply.with("ETag", &format!("\"{number}\"")).with("Last-Modified", &time)
    };
    let open_turns = |turn: Turn, validators| {
        // Each answer has another ETag, whatever is asked for.
        let server = faulty(move |request| Some(turn(part(request), request.number)));
        let file = open_with(&server.url("/a"), validators, limits(BRIEFLY)).unwrap();
        (server, file)
    };
    for (turn, validators) in [
        (same_time, Validators::All),
        (no_time, Validators::All),
        (no_time, Validators::Time),
        (other_time, Validators::Time),
        (other_time, Validators::TimeOrSize),
        (only_time, Validators::Time),
    ] {
        let (_server, file) = open_turns(turn, validators);
        for _ in 0..2 {
            let error = read(&file, 0..1000).unwrap_err();
            assert_eq!(error.kind(), Kind::Changed, "{error}");
            assert!(error.to_string().contains("its mirrors disagree"), "{error}");
            assert!(error.hint().unwrap().contains("--allow-changes"), "{error}");
        }
    }
    for turn in [same_time, no_time, only_time] {
        let (server, file) = open_turns(turn, Validators::TimeOrSize);
        read(&file, 0..1000).unwrap();
        assert_eq!(server.requests().len(), 2);
    }
    let (server, file) = open_turns(same_time, Validators::Time);
    read(&file, 0..1000).unwrap();
    read(&file, 5..1000).unwrap();
    let requests = server.requests();
    assert_eq!((requests.len(), requests[1].header("if-match")), (3, ""));
    assert_eq!(requests[1].header("if-unmodified-since"), MONDAY);
}
