//! Answers the peers: ranges of archives over HTTP, in TLS.
//!
//! Only daemons whose certificate is in a record of the job get further than the handshake. One
//! thread serves all connections, and hands each read to a thread of its own, because it may wait
//! for the storage.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

use http_body_util::Full;
use http_range_header::parse_range_header;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_RANGE, ETAG, HeaderValue, IF_MATCH, RANGE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime,
};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    self, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
};

use super::{Group, Serve, Wanted};
use crate::error::{Error, Result};
use crate::remote::PeerIdentity;
use crate::sync::{Arc, Ordering, Weak};

/// The most bytes of one answer.
const ANSWER_MAX: u64 = 4 << 20;

/// Reads at once.
const READS_MAX: usize = 64;

/// Connections at once.
const CONNECTIONS_MAX: usize = 4096;

/// How long a handshake may take, and a header.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The server, until it is dropped.
pub(super) struct Server {
    pub(super) port: u16,
    runtime: Option<Runtime>,
}

/// What peers may read, by key.
type Archives = HashMap<String, (u64, Serve)>;

impl Server {
    /// Serves the archives in `served` to the peers in `group`.
    ///
    /// Fails with `Io` if there is no port or no thread.
    pub(super) fn start(group: &Arc<Group>, served: Vec<(String, u64, Serve)>) -> Result<Self> {
        let failed = |error| Error::io("cannot serve other nodes", error);
        let listener = listen().map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let tls = tls(group).map_err(|error| failed(std::io::Error::other(error)))?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(READS_MAX)
            .thread_name("peers")
            .enable_io()
            .enable_time()
            .build()
            .map_err(failed)?;
        let archives = served.into_iter().map(|(key, len, read)| (key, (len, read))).collect();
        let _within = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
        runtime.spawn(accept(
            listener,
            TlsAcceptor::from(tls),
            Arc::downgrade(group),
            Arc::new(archives),
        ));
        Ok(Self { port, runtime: Some(runtime) })
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

/// A port on all addresses of this node.
fn listen() -> std::io::Result<TcpListener> {
    let any: [SocketAddr; 2] =
        [(Ipv6Addr::UNSPECIFIED, 0).into(), (Ipv4Addr::UNSPECIFIED, 0).into()];
    let listener = TcpListener::bind(any.as_slice())?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn tls(group: &Arc<Group>) -> std::result::Result<Arc<ServerConfig>, rustls::Error> {
    let PeerIdentity { certificate, key, .. } = &group.identity;
    let provider = Arc::new(ring::default_provider());
    let verifier = KnownPeers { group: Arc::downgrade(group), provider: Arc::clone(&provider) };
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.clone()));
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(vec![CertificateDer::from(certificate.clone())], key)?;
    Ok(Arc::new(config))
}

async fn accept(
    listener: tokio::net::TcpListener,
    tls: TlsAcceptor,
    group: Weak<Group>,
    archives: Arc<Archives>,
) {
    let places = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // There may be no descriptor left.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let (tls, group, archives) = (tls.clone(), Weak::clone(&group), Arc::clone(&archives));
        tokio::spawn(async move {
            let _place = place;
            let Ok(Ok(stream)) = timeout(HANDSHAKE_MAX, tls.accept(stream)).await else { return };
            let answer = |request| answer(request, Weak::clone(&group), Arc::clone(&archives));
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_secs(120))
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            // The peer has closed it, or is gone.
            let _ = served.await;
        });
    }
}

type Answer = std::result::Result<Response<Full<Bytes>>, Infallible>;

async fn answer(request: Request<Incoming>, group: Weak<Group>, archives: Arc<Archives>) -> Answer {
    let status = |status| Ok(with_status(status));
    let Some(group) = group.upgrade().filter(|it| !it.is_leaving.load(Ordering::Relaxed)) else {
        return status(StatusCode::GONE);
    };
    if request.method() != Method::GET {
        return status(StatusCode::METHOD_NOT_ALLOWED);
    }
    let key = request.uri().path().trim_start_matches('/').to_owned();
    let Some(len) = archives.get(&key).map(|(len, _)| *len) else {
        return status(StatusCode::NOT_FOUND);
    };
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let etag = format!("\"{key}\"");
    if header(IF_MATCH).is_some_and(|wanted| wanted != etag) {
        return status(StatusCode::PRECONDITION_FAILED);
    }
    let Some(range) = header(RANGE).and_then(|text| range_of(text, len)) else {
        return status(StatusCode::RANGE_NOT_SATISFIABLE);
    };
    let (start, end) = range;
    let wanted = match header(CACHE_CONTROL) {
        Some("only-if-cached") => Wanted::IfThere,
        _ => Wanted::Always,
    };
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(0)];
        let (_, read) = archives.get(&key)?;
        read(&mut bytes, start, wanted).ok()?;
        Some(bytes)
    });
    let Ok(Some(bytes)) = read.await else {
        return status(match wanted {
            Wanted::Always => StatusCode::SERVICE_UNAVAILABLE,
            Wanted::IfThere => StatusCode::GATEWAY_TIMEOUT,
        });
    };
    group.to_peers.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    let mut response = Response::new(Full::new(Bytes::from(bytes)));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let range = format!("bytes {start}-{}/{len}", end - 1);
    for (name, value) in [(CONTENT_RANGE, range), (ETAG, etag), (ACCEPT_RANGES, "bytes".into())] {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

fn with_status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

/// The first and the last bytes of the range in a header, as far as one answer goes.
fn range_of(header: &str, len: u64) -> Option<(u64, u64)> {
    let ranges = parse_range_header(header).ok()?.validate(len).ok()?;
    let [range] = ranges.as_slice() else { return None };
    let (start, end) = (*range.start(), range.end().checked_add(1)?);
    (start < end).then_some((start, end.min(start.saturating_add(ANSWER_MAX))))
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
            ("bytes=0-0", Some((0, 1))),
            ("bytes=5-9", Some((5, 10))),
            ("bytes=5-", Some((5, 5 + ANSWER_MAX))),
            ("bytes=-3", Some((len - 3, len))),
            ("bytes=0-99999999999", Some((0, ANSWER_MAX))),
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
