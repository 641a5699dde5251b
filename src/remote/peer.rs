//! Another daemon of the job, which is asked for bytes of an archive.
//!
//! Both ends prove that they are who the record of the job says: each has a certificate of its own,
//! and accepts only that of the other. The name in the certificates means nothing.

use std::io::Read;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ureq::Agent;
use ureq::config::Config;
use ureq::http::{StatusCode, Uri};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::Version;
use super::failure::Failure;
use super::http::{Connections, Request, new_agent};
use super::outage::Deadline;
use crate::error::reason;
use crate::sync::{Arc, AtomicU64, Ordering};

/// The name in the certificate of each daemon. It is not that of a host.
pub const PEER_NAME: &str = "daemon.archfs.invalid";

/// The header of an answer that says how many bytes a daemon has read from the storage.
pub const STORAGE_BYTES: &str = "archfs-storage-bytes";

/// A certificate and its private key.
pub struct PeerIdentity {
    /// The certificate (X.509), in DER.
    pub certificate: Vec<u8>,
    /// The key (PKCS #8), in PEM.
    pub key: String,
}

/// A daemon at an address.
#[derive(Debug)]
pub struct PeerServer {
    url: String,
    agent: Agent,
    storage_bytes: Arc<AtomicU64>,
}

/// Which bytes a daemon is to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerWanted {
    /// All, even if it has to read its storage for them.
    Always,
    /// Those that it has already (`only-if-cached`: RFC 9111, section 5.2.1.7).
    IfThere,
}

/// Why a daemon did not send what it was asked for.
#[derive(Debug)]
pub enum PeerFailure {
    /// It serves no longer.
    Gone,
    /// It does not send the bytes: it has no such archive, or cannot read it now.
    Refused,
    /// It did not answer in time.
    Late,
    /// It cannot be reached, or is another one.
    Unreachable(String),
}

impl PeerServer {
    /// The daemon at `address` that has `certificate`. It gets to know `own`. Its answers set
    /// `storage_bytes` to how many bytes it has read from the storage.
    pub fn new(
        address: SocketAddr,
        certificate: &[u8],
        own: &PeerIdentity,
        storage_bytes: &Arc<AtomicU64>,
    ) -> Self {
        let owned = |der: &[u8]| Certificate::from_der(der).to_owned();
        let key = PrivateKey::from_pem(own.key.as_bytes()).ok();
        let client = key.map(|key| ClientCert::new_with_certs(&[owned(&own.certificate)], key));
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(vec![owned(certificate)])))
            .client_cert(client)
            .build();
        Self {
            url: format!("https://{PEER_NAME}:{}", address.port()),
            agent: new_agent(None, tls, At(address), Connections::Few),
            storage_bytes: Arc::clone(storage_bytes),
        }
    }

    /// Fills `buffer`, which is not empty, with the bytes at `offset` of the archive with this key,
    /// which has `len` bytes, unless that takes longer than `limit`.
    pub fn read_exact_at(
        &self,
        (archive, len): (&str, u64),
        buffer: &mut [u8],
        offset: u64,
        (what, limit): (PeerWanted, Duration),
    ) -> Result<(), PeerFailure> {
        let etag = format!("\"{archive}\"");
        let version = Version { etag: Some(etag.clone()), modified: None };
        let end = offset.saturating_add(buffer.len() as u64);
        let mut request =
            Request::new(format!("{}/{archive}", self.url), &(offset..end), Some(&version));
        if what == PeerWanted::IfThere {
            request.headers.push(("cache-control", "only-if-cached".to_owned()));
        }
        // Bytes that arrive slowly do not extend it, as they do for other servers.
        let until = Instant::now() + limit;
        let _deadline = Deadline::set(until);
        let is_late = || Instant::now() >= until;
        let response = request.send_by(&self.agent).map_err(|failure| match failure {
            _ if is_late() => PeerFailure::Late,
            Failure::Passing { why, .. } => PeerFailure::Unreachable(why),
            Failure::Final(error) => PeerFailure::Unreachable(error.to_string()),
            Failure::Denied(_) | Failure::Other(_) => PeerFailure::Refused,
        })?;
        let header = |name| response.headers().get(name).map(|value| value.as_bytes().to_owned());
        let range = format!("bytes {offset}-{}/{len}", end.saturating_sub(1));
        match response.status() {
            StatusCode::PARTIAL_CONTENT if header("content-range") == Some(range.into_bytes()) => {}
            StatusCode::GONE => return Err(PeerFailure::Gone),
            _ => return Err(PeerFailure::Refused),
        }
        if header("etag") != Some(etag.into_bytes()) {
            return Err(PeerFailure::Refused);
        }
        let read = header(STORAGE_BYTES).and_then(|text| str::from_utf8(&text).ok()?.parse().ok());
        self.storage_bytes.fetch_max(read.unwrap_or(0), Ordering::Relaxed);
        let mut body = response.into_body().into_reader();
        body.read_exact(buffer).map_err(|error| match is_late() {
            true => PeerFailure::Late,
            false => PeerFailure::Unreachable(reason(&error)),
        })?;
        // The end as well, so that the connection can be used again.
        match body.read(&mut [0]) {
            Ok(0) => Ok(()),
            _ => Err(PeerFailure::Refused),
        }
    }
}

/// Leads to one address, whatever the name.
#[derive(Debug)]
struct At(SocketAddr);

impl Resolver for At {
    fn resolve(
        &self,
        _: &Uri,
        _: &Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut found = self.empty();
        found.push(self.0);
        Ok(found)
    }
}
