//! A slow HTTP server: each request takes a given time longer, and requests run concurrently.
//!
//! The benchmarks use it as the location of archives. It sends files of a directory and parts of
//! them (Range), with an ETag. Concurrent answers share the bandwidth, if there is a limit.
//!
//! Usage: slow-http DIRECTORY PORT|ADDRESS:PORT MILLISECONDS [MEGABYTES_PER_SECOND]
//!
//! It prints a line when it listens on ADDRESS, by default 127.0.0.1. When its standard input ends,
//! it prints how many requests there were and how many bytes it sent, and exits.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

#[path = "../tests/support/slow_link.rs"]
mod slow_link;

use slow_link::{SLICE, SlowLink};

struct Server {
    directory: PathBuf,
    link: SlowLink,
    requests: AtomicU64,
    bytes: AtomicU64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, port, latency, rate @ ..] = arguments.as_slice() else {
        panic!("usage: slow-http DIRECTORY PORT|ADDRESS:PORT MILLISECONDS [MEGABYTES_PER_SECOND]");
    };
    let rate = rate.first().map(|rate| rate.parse().unwrap());
    let server = Arc::new(Server {
        directory: directory.into(),
        link: SlowLink::new(latency.parse().unwrap(), rate),
        requests: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
    });
    let address = if port.contains(':') { port.clone() } else { format!("127.0.0.1:{port}") };
    let listener = TcpListener::bind(address).unwrap();
    println!("listening");
    let serving = Arc::clone(&server);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let server = Arc::clone(&serving);
            thread::spawn(move || server.serve(&stream.unwrap()));
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!("{} {}", count(&server.requests), count(&server.bytes));
}

impl Server {
    /// Answers the requests of a connection, until the client closes it.
    fn serve(&self, mut stream: &TcpStream) -> Option<()> {
        stream.set_nodelay(true).ok()?;
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        loop {
            let mut lines = Vec::new();
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).ok()? == 0 {
                    return None;
                }
                if line.trim().is_empty() {
                    break;
                }
                lines.push(line.trim().to_owned());
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            self.link.request();
            let mut words = lines.first()?.split(' ');
            let (method, path) = (words.next()?, words.next()?.trim_start_matches('/'));
            let found = File::open(self.directory.join(path)).and_then(|file| {
                let metadata = file.metadata()?;
                Ok((file, metadata))
            });
            let Ok((file, metadata)) = found else {
                stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").ok()?;
                continue;
            };
            let range = lines.iter().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                let range = value.trim().strip_prefix("bytes=")?;
                name.eq_ignore_ascii_case("range").then_some(range)?.split_once('-')
            });
            let len = metadata.len();
            let (status, first, end) = match range {
                Some((first, last)) => {
                    let last = last.parse().unwrap_or(u64::MAX).min(len.saturating_sub(1));
                    ("206 Partial Content", first.parse().ok()?, last + 1)
                }
                None => ("200 OK", 0, len),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nAccept-Ranges: bytes\r\nETag: \
                 \"{len:x}-{:x}\"\r\n{}\r\n",
                end.saturating_sub(first),
                metadata.mtime(),
                match status {
                    "200 OK" => String::new(),
                    _ => format!("Content-Range: bytes {first}-{}/{len}\r\n", end - 1),
                }
            );
            stream.write_all(head.as_bytes()).ok()?;
            if method != "HEAD" {
                self.send(stream, &file, first, end)?;
            }
        }
    }

    fn send(&self, mut stream: &TcpStream, file: &File, first: u64, end: u64) -> Option<()> {
        let mut buffer = vec![0; SLICE];
        let mut next = first;
        while next < end {
            let slice = &mut buffer[..SLICE.min((end - next) as usize)];
            file.read_exact_at(slice, next).ok()?;
            self.link.transfer(slice.len());
            stream.write_all(slice).ok()?;
            next += slice.len() as u64;
            self.bytes.fetch_add(slice.len() as u64, Ordering::Relaxed);
        }
        Some(())
    }
}
