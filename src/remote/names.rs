//! Addresses of servers. They are kept for some time, since a name is needed for each request.
//!
//! The program getent(1) looks them up, as the node is configured: files, DNS, a directory service.
//! The C library would load libraries of the node for that, which a statically linked program must
//! not: they are of another version.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;
use ureq::{Error, Timeout};

use super::HAS_ENDED;
use super::outage::Deadline;
use crate::sync::{Mutex, Ordering};

/// How long the addresses of a name are used. If the name cannot be looked up then, they are used
/// further.
const KEPT: Duration = Duration::from_secs(60);

/// Where getent may be, before the directories of PATH.
const GETENT: [&str; 2] = ["/usr/bin/getent", "/bin/getent"];

const LOOKUP_MAX: Duration = Duration::from_secs(15);

/// The longest wait for getent before it is checked whether the process wants to end.
const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

const ADDRESSES_MAX: usize = 16;

/// Looks up names, at most once in a while.
#[derive(Default)]
pub(super) struct KnownNames {
    /// Held for a lookup or an insertion, not while a name server is asked.
    known: Mutex<HashMap<String, (Instant, Vec<IpAddr>)>>,
}

impl fmt::Debug for KnownNames {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("KnownNames")
    }
}

impl Resolver for KnownNames {
    fn resolve(&self, uri: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let host = uri.host().ok_or(Error::HostNotFound)?.trim_matches(['[', ']']);
        let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        let port = uri.port_u16().unwrap_or(default);
        let mut found = self.empty();
        let mut addresses = self.addresses(host)?;
        addresses.truncate(ADDRESSES_MAX);
        // The client takes the first one that accepts. Another may be of a server whose file is of
        // the version that is wanted.
        if !addresses.is_empty() {
            let first = Deadline::skipped_addresses() % addresses.len();
            addresses.rotate_left(first);
        }
        for address in addresses {
            found.push(SocketAddr::new(address, port));
        }
        Ok(found)
    }
}

impl KnownNames {
    fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, Error> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        let found = self.known.lock().get(host).cloned();
        if let Some((since, addresses)) = &found
            && since.elapsed() < KEPT
        {
            return Ok(addresses.clone());
        }
        match looked_up(host) {
            Ok(new) => {
                self.known.lock().insert(host.to_owned(), (Instant::now(), new.clone()));
                Ok(new)
            }
            Err(error) => found.map(|(_, addresses)| addresses).ok_or(error),
        }
    }
}

/// The addresses of `host`, in the order in which to try them.
fn looked_up(host: &str) -> Result<Vec<IpAddr>, Error> {
    // It would be an option.
    if host.starts_with('-') {
        return Err(Error::HostNotFound);
    }
    let program = GETENT.into_iter().find(|path| Path::new(path).exists()).unwrap_or("getent");
    let mut getent = Command::new(program);
    getent.args(["ahosts", host]).stdin(Stdio::null()).stderr(Stdio::null());
    match output_of(getent) {
        Ok(Some(output)) => {
            let addresses = addresses_in(&String::from_utf8_lossy(&output));
            if addresses.is_empty() { Err(Error::HostNotFound) } else { Ok(addresses) }
        }
        Ok(None) => Err(Error::Timeout(Timeout::Resolve)),
        Err(_) if host.eq_ignore_ascii_case("localhost") => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Error::Other("no program getent to look up names".into()))
        }
        Err(error) => Err(Error::Io(error)),
    }
}

/// What `command` prints. `None` if it takes too long, and is killed.
fn output_of(mut command: Command) -> io::Result<Option<Vec<u8>>> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().map_or(Ok(None), |mut stdout| read_in_time(&mut stdout));
    if !matches!(output, Ok(Some(_))) {
        // It may have ended by itself.
        let _ = child.kill();
    }
    child.wait()?;
    output
}

/// All that can be read from `pipe`. `None` if its end does not come in time.
fn read_in_time(pipe: &mut (impl Read + AsFd)) -> io::Result<Option<Vec<u8>>> {
    let until = Instant::now() + Deadline::left().unwrap_or(LOOKUP_MAX).min(LOOKUP_MAX);
    let (mut output, mut buffer) = (Vec::new(), [0; 4096]);
    while Instant::now() < until && !HAS_ENDED.load(Ordering::SeqCst) {
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&STEP)) {
            Ok(0) | Err(Errno::INTR) => continue,
            found => found?,
        };
        match pipe.read(&mut buffer)? {
            0 => return Ok(Some(output)),
            read => output.extend_from_slice(&buffer[..read]),
        }
    }
    Ok(None)
}

/// The addresses in the output of `getent ahosts`: a line for each kind of socket.
fn addresses_in(output: &str) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for line in output.lines() {
        let mut words = line.split_whitespace();
        let (address, kind) = (words.next(), words.next());
        if let (Some(Ok(address)), Some("STREAM")) = (address.map(str::parse), kind)
            && !addresses.contains(&address)
        {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn names_are_looked_up_and_numbers_are_not() {
        let names = KnownNames::default();
        let loopback = names.addresses("localhost").unwrap();
        assert!(!loopback.is_empty() && loopback.iter().all(IpAddr::is_loopback), "{loopback:?}");
        assert_eq!(names.known.lock().len(), 1);
        assert_eq!(names.addresses("localhost").unwrap(), loopback);
        assert_eq!(names.addresses("::1").unwrap(), ["::1".parse::<IpAddr>().unwrap()]);
        for name in ["no-such-host.invalid", "-h", "--version"] {
            assert!(matches!(names.addresses(name), Err(Error::HostNotFound)), "{name}");
        }
        assert_eq!(names.known.lock().len(), 1, "what is not found is not kept");
    }

    #[test]
    fn requests_after_another_version_begin_with_other_addresses() {
        let names = KnownNames::default();
        let known: Vec<IpAddr> =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|it| it.parse().unwrap()).into();
        names.known.lock().insert("mirrors".to_owned(), (Instant::now(), known.clone()));
        let uri = Uri::from_static("http://mirrors:81/a");
        let timeout = NextTimeout {
            after: KEPT.into(),
            reason: Timeout::Resolve,
            per_read: None,
            per_write: None,
        };
        let resolved = || {
            let found = names.resolve(&uri, &Config::default(), timeout).unwrap();
            found.iter().map(SocketAddr::ip).collect::<Vec<_>>()
        };
        let deadline = Deadline::set(Instant::now() + KEPT);
        assert_eq!(resolved(), known);
        for (count, first) in [(1, 1), (2, 2), (3, 0), (4, 1)] {
            deadline.skip_addresses(count);
            assert_eq!(resolved(), [&known[first..], &known[..first]].concat());
        }
        drop(deadline);
        assert_eq!(resolved(), known, "the next read begins with the first one");
    }

    #[test]
    fn a_lookup_that_takes_too_long_is_killed() {
        let start = Instant::now();
        let _deadline = Deadline::set(start + Duration::from_millis(20));
        let mut command = Command::new("sh");
        command.args(["-c", "echo 10.0.0.2 STREAM; exec sleep 60"]);
        assert_eq!(output_of(command).unwrap(), None);
        assert!(start.elapsed() < Duration::from_secs(10));
        let mut command = Command::new("echo");
        command.arg("done");
        Deadline::change(Instant::now() + Duration::from_secs(60));
        assert_eq!(output_of(command).unwrap().unwrap(), b"done\n");
    }

    #[test]
    fn each_address_counts_once() {
        let output = "10.0.0.2      STREAM host.site\n10.0.0.2      DGRAM  \n\
                      fe80::1       STREAM \n10.0.0.2  STREAM\nx STREAM\n";
        let expected: [IpAddr; 2] = ["10.0.0.2".parse().unwrap(), "fe80::1".parse().unwrap()];
        assert_eq!(addresses_in(output), expected);
    }
}
