//! Answers the peers: ranges of archives over HTTP, in TLS.
//!
//! Only daemons whose certificate is in a record of the job get further than the handshake. One
//! thread serves all connections, and hands each read to a thread of its own, because it may wait
//! for the storage.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::net::TcpListener;
use std::ops::Range;
use std::time::Duration;

use http_body_util::Full;
use http_range_header::parse_range_header;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_RANGE, ETAG, HeaderName, HeaderValue, IF_MATCH, RANGE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    self, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
};

use super::{Group, Served};
use crate::error::{Error, Result};
use crate::os::process;
use crate::remote::{PeerIdentity, STORAGE_BYTES};
use crate::sync::{Arc, Ordering, Weak};

/// The most bytes of one answer.
const ANSWER_MAX: u64 = 4 << 20;

/// Answers at once, which are in memory: those that need the storage, and others.
const READS_MAX: usize = 64;
const ANSWERS_MAX: usize = 64;

/// Handshakes at once, and how long one may take: strangers can begin them.
const HANDSHAKES_MAX: usize = 64;
const HANDSHAKE_MAX: Duration = Duration::from_secs(3);

/// Connections at once: this part of the files that the process may have open.
const CONNECTIONS_PART: u64 = 4;

/// Time without a request after which a connection is closed.
const IDLE_MAX: Duration = Duration::from_secs(120);

/// Time after which a connection is closed if its peer takes nothing of what was sent to it.
const UNTAKEN_MAX: Duration = Duration::from_secs(10);

/// The server, until it is dropped.
pub(super) struct Server {
    runtime: Option<Runtime>,
}

/// What all connections use.
struct Shared {
    group: Weak<Group>,
    archives: HashMap<String, Box<dyn Served>>,
    /// For answers that need the storage, and for others.
    reads: Arc<Semaphore>,
    answers: Arc<Semaphore>,
}

impl Server {
    /// Serves the archives in `served` to the peers in `group`.
    ///
    /// Fails with `Io` if there is no thread.
    pub(super) fn start(
        group: &Arc<Group>,
        listener: TcpListener,
        served: Vec<Box<dyn Served>>,
    ) -> Result<Self> {
        let failed = |error| Error::io("cannot serve other nodes", error);
        let tls = tls(group).map_err(|error| failed(std::io::Error::other(error)))?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            // Reads of bytes in the copy do not wait behind those of the storage.
            .max_blocking_threads(READS_MAX + ANSWERS_MAX)
            .thread_name("peers")
            .enable_io()
            .enable_time()
            .build()
            .map_err(failed)?;
        let _within = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
        let shared = Shared {
            group: Arc::downgrade(group),
            archives: served.into_iter().map(|it| (it.key().to_owned(), it)).collect(),
            reads: Arc::new(Semaphore::new(READS_MAX)),
            answers: Arc::new(Semaphore::new(ANSWERS_MAX)),
        };
        runtime.spawn(accept(listener, TlsAcceptor::from(tls), Arc::new(shared)));
        Ok(Self { runtime: Some(runtime) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Reads that wait for the storage must not delay the end of the mount.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// How many connections there may be. Each peer has several.
fn connections_max() -> usize {
    process::enlarge_open_files_max();
    usize::try_from(process::open_files_max() / CONNECTIONS_PART)
        .unwrap_or(usize::MAX)
        .clamp(HANDSHAKES_MAX, Semaphore::MAX_PERMITS)
}

fn tls(group: &Arc<Group>) -> std::result::Result<Arc<ServerConfig>, rustls::Error> {
    let PeerIdentity { certificate, key } = &group.identity;
    let provider = Arc::new(ring::default_provider());
    let verifier = KnownPeers { group: Arc::downgrade(group), provider: Arc::clone(&provider) };
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
    let key = key.map_err(|error| rustls::Error::General(error.to_string()))?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(vec![CertificateDer::from(certificate.clone())], key)?;
    Ok(Arc::new(config))
}

async fn accept(listener: tokio::net::TcpListener, tls: TlsAcceptor, shared: Arc<Shared>) {
    let connections = Arc::new(Semaphore::new(connections_max()));
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let Ok(connection) = Arc::clone(&connections).acquire_owned().await else { return };
        let Ok(handshake) = Arc::clone(&handshakes).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // There may be no descriptor left.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        // Else a suspended peer would keep its answers, and so those of others.
        let untaken_max = u32::try_from(UNTAKEN_MAX.as_millis()).unwrap_or(u32::MAX);
        let _ = set_tcp_user_timeout(&stream, untaken_max);
        let (tls, shared) = (tls.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            let _connection = connection;
            let Ok(Ok(stream)) = timeout(HANDSHAKE_MAX, tls.accept(stream)).await else { return };
            drop(handshake);
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE_MAX)
                .serve_connection(
                    TokioIo::new(stream),
                    service_fn(|request| answer(request, Arc::clone(&shared))),
                );
            // The peer has closed it, or has ended.
            let _ = served.await;
        });
    }
}

type Answer = std::result::Result<Response<Full<Bytes>>, Infallible>;

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> Answer {
    let status = |status| Ok(with_status(status));
    let group = shared.group.upgrade().filter(|it| !it.is_leaving.load(Ordering::Relaxed));
    let Some(group) = group else {
        return status(StatusCode::GONE);
    };
    if request.method() != Method::GET {
        return status(StatusCode::METHOD_NOT_ALLOWED);
    }
    let key = request.uri().path().trim_start_matches('/').to_owned();
    let Some(archive) = shared.archives.get(&key) else {
        return status(StatusCode::NOT_FOUND);
    };
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let etag = format!("\"{key}\"");
    if header(IF_MATCH).is_some_and(|wanted| wanted != etag) {
        return status(StatusCode::PRECONDITION_FAILED);
    }
    let len = archive.size();
    let Some(range) = header(RANGE).and_then(|text| range_of(text, len)) else {
        return status(StatusCode::RANGE_NOT_SATISFIABLE);
    };
    let is_there = archive.has(&range);
    if !is_there && header(CACHE_CONTROL) == Some("only-if-cached") {
        return status(StatusCode::GATEWAY_TIMEOUT);
    }
    // Bytes in the copy do not wait for reads of the storage.
    let permits = if is_there { &shared.answers } else { &shared.reads };
    let Ok(permit) = Arc::clone(permits).acquire_owned().await else {
        return status(StatusCode::GONE);
    };
    let (for_thread, wanted) = (Arc::clone(&shared), range.clone());
    let read = tokio::task::spawn_blocking(move || {
        let len = usize::try_from(wanted.end - wanted.start).ok()?;
        // The read has the permit also if the peer gives up and closes the connection.
        let mut sent = Sent { bytes: vec![0; len], _permit: permit };
        for_thread.archives.get(&key)?.read(&mut sent.bytes, wanted.start).ok()?;
        Some(sent)
    });
    let Ok(Some(sent)) = read.await else {
        return status(StatusCode::SERVICE_UNAVAILABLE);
    };
    group.to_peers.fetch_add(sent.bytes.len() as u64, Ordering::Relaxed);
    let mut response = Response::new(Full::new(Bytes::from_owner(sent)));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let range = format!("bytes {}-{}/{len}", range.start, range.end - 1);
    let read = group.from_storage.load(Ordering::Relaxed).to_string();
    for (name, value) in [
        (CONTENT_RANGE, range),
        (ETAG, etag),
        (ACCEPT_RANGES, "bytes".into()),
        (HeaderName::from_static(STORAGE_BYTES), read),
    ] {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

/// The bytes of an answer, until the last one is sent.
struct Sent {
    bytes: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn with_status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

/// The range in a header, as far as one answer goes.
fn range_of(header: &str, len: u64) -> Option<Range<u64>> {
    let ranges = parse_range_header(header).ok()?.validate(len).ok()?;
    let [range] = ranges.as_slice() else { return None };
    let (start, end) = (*range.start(), range.end().checked_add(1)?);
    (start < end).then(|| start..end.min(start.saturating_add(ANSWER_MAX)))
}

/// Accepts the certificates of the daemons of the job.
struct KnownPeers {
    group: Weak<Group>,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for KnownPeers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("KnownPeers")
    }
}

impl ClientCertVerifier for KnownPeers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> std::result::Result<ClientCertVerified, rustls::Error> {
        let is_known = self.group.upgrade().is_some_and(|group| group.knows(certificate));
        match is_known {
            true => Ok(ClientCertVerified::assertion()),
            false => Err(rustls::Error::General("not a daemon of this job".into())),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 is required".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_served_as_far_as_an_answer_goes() {
        let len = 3 * ANSWER_MAX;
        for (header, expected) in [
            ("bytes=0-0", Some(0..1)),
            ("bytes=5-9", Some(5..10)),
            ("bytes=5-", Some(5..5 + ANSWER_MAX)),
            ("bytes=-3", Some(len - 3..len)),
            ("bytes=0-99999999999", Some(0..ANSWER_MAX)),
            ("bytes=0-1,5-6", None),
            ("bytes=12582912-", None),
            ("bytes=9-5", None),
            ("lines=1-2", None),
            ("", None),
        ] {
            assert_eq!(range_of(header, len), expected, "{header}");
        }
        assert_eq!(range_of("bytes=0-0", 0), None);
    }
}
