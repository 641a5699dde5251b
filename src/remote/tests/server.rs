//! A server for tests, whose every answer the test chooses.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

/// The ETag of what `part` sends.
pub(crate) const ETAG: &str = "\"version 1\"";

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// How many came before it.
    pub(crate) number: usize,
    /// With the query.
    pub(crate) path: String,
    /// By names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
}

impl Request {
    /// The value of a header; empty if it has none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The first and the last byte that it asks for.
    pub(crate) fn range(&self) -> (usize, usize) {
        let (first, last) =
            self.header("range").strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        (first.parse().unwrap(), last.parse().unwrap())
    }
}

/// What the server does.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) manner: Manner,
}

/// How it sends its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Whole,
    /// It closes the connection after this many bytes of the body.
    Cut(usize),
    /// The same with a reset of the connection.
    Reset(usize),
    /// The body in this manner: a byte, a pause, a byte, and so on.
    Drip(Duration),
    /// The same for the header.
    DripHeader(Duration),
    /// A header that does not end.
    EndlessHeader,
    /// In chunks, without a length.
    Chunked,
    /// Without a length. The end of the connection is that of the body.
    Unframed,
    /// Never, but the connection stays open.
    Never,
}

impl Reply {
    /// An answer without a body.
    pub(crate) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), manner: Manner::Whole }
    }

    /// The part of `bytes` that `request` asks for.
    pub(crate) fn part(request: &Request, bytes: &[u8]) -> Self {
        let (first, last) = request.range();
        if bytes.is_empty() {
            return Self::status(416).with("Content-Range", "bytes */0");
        }
        let last = last.min(bytes.len() - 1);
        let range = format!("bytes {first}-{last}/{}", bytes.len());
        let body = bytes[first..=last].to_vec();
        Self { body, ..Self::status(206) }.with("Content-Range", &range).with("ETag", ETAG)
    }

    /// The same with one more header, or another value of it.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(found, _)| !found.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same, sent in this manner.
    pub(crate) fn sent(self, manner: Manner) -> Self {
        Self { manner, ..self }
    }
}

/// Serves until it is dropped.
pub(crate) struct TestServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    has_ended: Arc<AtomicBool>,
}

impl TestServer {
    /// Answers each request as `answer` says.
    pub(crate) fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let has_ended = Arc::new(AtomicBool::new(false));
        let (answer, count) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
        let (kept, ended) = (Arc::clone(&requests), Arc::clone(&has_ended));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (answer, count) = (Arc::clone(&answer), Arc::clone(&count));
                let (kept, ended) = (Arc::clone(&kept), Arc::clone(&ended));
                thread::spawn(move || {
                    let stream = stream.unwrap();
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    while let Some(mut request) = read(&mut reader) {
                        request.number = count.fetch_add(1, Ordering::Relaxed);
                        kept.lock().unwrap().push(request.clone());
                        if !send(&stream, &answer(&request), &ended) {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, requests, has_ended }
    }

    /// The URL of `path`, which begins with a slash.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Host and port.
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    /// All requests until now.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        // The thread waits for a connection.
        let _ = TcpStream::connect(self.address);
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    let mut next = |line: &mut String| {
        line.clear();
        reader.read_line(line).ok().filter(|&len| len > 0)
    };
    next(&mut line)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        next(&mut line)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    Some(Request { number: 0, path, headers })
}

/// Sends `reply`. Returns whether the connection can be used again.
fn send(mut stream: &TcpStream, reply: &Reply, has_ended: &AtomicBool) -> bool {
    let pause = || thread::sleep(Duration::from_millis(10));
    if reply.manner == Manner::Never {
        while !has_ended.load(Ordering::Relaxed) {
            pause();
        }
        return false;
    }
    let mut head = format!("HTTP/1.1 {} Reason\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let has_length = reply.headers.iter().any(|(name, _)| name == "Content-Length");
    match reply.manner {
        Manner::Chunked => head.push_str("Transfer-Encoding: chunked\r\n\r\n"),
        Manner::Unframed => head.push_str("Connection: close\r\n\r\n"),
        _ if has_length => head.push_str("\r\n"),
        _ => head.push_str(&format!("Content-Length: {}\r\n\r\n", reply.body.len())),
    }
    let chunk = || [format!("{:x}\r\n", reply.body.len()).as_bytes(), &reply.body].concat();
    let sent = match reply.manner {
        Manner::Cut(len) | Manner::Reset(len) => &reply.body[..len.min(reply.body.len())],
        Manner::Chunked => &[&chunk()[..], b"\r\n0\r\n\r\n"].concat(),
        _ => &reply.body,
    };
    let drip = |mut stream: &TcpStream, bytes: &[u8], pause| {
        bytes.iter().all(|byte| {
            thread::sleep(pause);
            !has_ended.load(Ordering::Relaxed) && stream.write_all(&[*byte]).is_ok()
        })
    };
    match reply.manner {
        Manner::Drip(pause) => {
            return stream.write_all(head.as_bytes()).is_ok() && drip(stream, sent, pause);
        }
        Manner::DripHeader(pause) => return drip(stream, head.as_bytes(), pause),
        Manner::EndlessHeader => {
            let line = format!("X: {}\r\n", "x".repeat(4000));
            let mut is_open = stream.write_all(b"HTTP/1.1 206 Reason\r\n").is_ok();
            while is_open && !has_ended.load(Ordering::Relaxed) {
                is_open = stream.write_all(line.as_bytes()).is_ok();
            }
            return false;
        }
        _ => {}
    }
    // One write, so that small packets do not wait for each other.
    let whole = [head.as_bytes(), sent].concat();
    let is_open = stream.write_all(&whole).is_ok();
    match reply.manner {
        Manner::Reset(_) => {
            // Closing it resets it then (socket(7), SO_LINGER).
            set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
            false
        }
        Manner::Cut(_) | Manner::Unframed => {
            let _ = stream.shutdown(Shutdown::Write);
            false
        }
        _ => is_open,
    }
}
