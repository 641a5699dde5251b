//! The client for HTTP and HTTPS: connections, certificates, time limits.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use ureq::http::{Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::resolver::Resolver;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport,
};
use ureq::{Agent, Body, Proxy};

use super::Version;
use super::failure::Failure;
use super::names::KnownNames;
use super::outage::Deadline;
use crate::error::{Error, Kind};
use crate::sync::{Arc, Condvar, Mutex, OnceLock};

/// Requests at once, of all files together.
const REQUESTS_MAX: usize = 64;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// The longest time until the header of an answer. The server may have to find the file first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest time without a byte of an answer.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Idle connections are closed after this time. Many servers keep them for only a minute.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Idle connections to one of the daemons of a job, of which there may be hundreds.
const CONNECTIONS_TO_PEER: usize = 8;

/// Bytes of a buffer for requests: the client's own size, and one for many connections.
const BUFFER: usize = 128 << 10;
const SMALL_BUFFER: usize = 4 << 10;

/// How many connections a client keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connections {
    /// As many as there are requests at once.
    Many,
    /// A few, with small buffers.
    Few,
}

/// A request for a range of a file.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) url: String,
    /// Names in lower case, and values.
    pub(super) headers: Vec<(&'static str, String)>,
    /// Which state of its server it was made in.
    pub(super) generation: u64,
    /// Whether another server has sent archfs there.
    pub(super) is_redirected: bool,
    /// A file with the certificates to trust, instead of those for all servers.
    pub(super) certificates: Option<PathBuf>,
}

impl Request {
    /// Asks for `range`, which is not empty, of `version` if that is given.
    pub(super) fn new(url: String, range: &Range<u64>, version: Option<&Version>) -> Self {
        let last = range.end.saturating_sub(1);
        let mut headers = vec![("range", format!("bytes={}-{last}", range.start))];
        // A weak ETag never matches (RFC 9110, section 13.1.1).
        let etag = version.and_then(|version| version.etag.as_deref());
        let modified = version.and_then(|version| version.modified.as_deref());
        if let Some(etag) = etag.filter(|etag| etag.starts_with('"')) {
            headers.push(("if-match", etag.to_owned()));
        } else if let Some(modified) = modified {
            headers.push(("if-unmodified-since", modified.to_owned()));
        }
        Self { url, headers, generation: 0, is_redirected: false, certificates: None }
    }

    /// The answer, whatever its status.
    pub(super) fn send(&self) -> Result<Response<Body>, Failure> {
        self.send_by(&agent(&self.url, self.certificates.as_ref())?)
    }

    /// The answer to this client.
    pub(super) fn send_by(&self, agent: &Agent) -> Result<Response<Body>, Failure> {
        let mut request = agent.get(&self.url);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        if Deadline::skipped_addresses() > 0 {
            // Idle connections lead to the server that has answered.
            request = request.config().max_idle_age(Duration::ZERO).build();
        }
        request.call().map_err(|error| match agent.config().proxy() {
            Some(proxy) if is_of_connection(&error) => {
                Failure::from(error).of(&format!("proxy {}:{}", proxy.host(), proxy.port()))
            }
            _ => Failure::from(error),
        })
    }
}

/// Whether a request failed before it reached its server, or the proxy before it.
fn is_of_connection(error: &ureq::Error) -> bool {
    use ureq::{Error, Timeout};
    matches!(
        error,
        Error::HostNotFound
            | Error::Timeout(Timeout::Resolve | Timeout::Connect)
            | Error::Io(_)
            | Error::ConnectProxyFailed(_)
    )
}

/// The right to send a request and to read its answer.
pub(super) struct Slot;

/// Requests under way. Held for an addition.
static REQUESTS: Mutex<usize> = Mutex::new(0);
static REQUEST_ENDED: Condvar = Condvar::new();

impl Slot {
    pub(super) fn take() -> Result<Self, Failure> {
        let mut requests = REQUESTS.lock();
        while *requests >= REQUESTS_MAX {
            let left = Deadline::left().unwrap_or(SILENCE_MAX);
            if left.is_zero() {
                return Err(Failure::passing("too many requests wait for answers"));
            }
            REQUEST_ENDED.wait_for(&mut requests, left);
        }
        *requests += 1;
        Ok(Self)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *REQUESTS.lock() -= 1;
        REQUEST_ENDED.notify_one();
    }
}

/// The clients, by their proxy, if they have one, and the file with their certificates. Held to
/// find or make a client, which reads certificates the first time.
static AGENTS: OnceLock<Mutex<HashMap<AgentKey, Agent>>> = OnceLock::new();

type AgentKey = (Option<String>, Option<PathBuf>);

pub(super) fn end() {
    let agents: Vec<_> = AGENTS.get_or_init(Mutex::default).lock().values().cloned().collect();
    agents.into_iter().for_each(Agent::shutdown);
}

/// The client for `url` that trusts the certificates in this file.
fn agent(url: &str, certificates: Option<&PathBuf>) -> Result<Agent, Failure> {
    let invalid = |context: &str| Failure::Final(Error::new(Kind::Usage, context));
    let uri: Uri = url.parse().map_err(|_| invalid("not a valid URL"))?;
    let proxy = proxy_for(&uri, |name| std::env::var(name).ok());
    let key = (proxy, certificates.cloned());
    let mut agents = AGENTS.get_or_init(Mutex::default).lock();
    if let Some(agent) = agents.get(&key) {
        return Ok(agent.clone());
    }
    let parsed = key.0.as_deref().map(Proxy::new).transpose();
    let parsed = parsed.map_err(|_| invalid("the URL of the proxy is not valid"))?;
    let tls = TlsConfig::builder().root_certs(root_certificates(certificates)).build();
    let agent = new_agent(parsed, tls, KnownNames::default(), Connections::Many);
    agents.insert(key, agent.clone());
    Ok(agent)
}

/// Almost all settings are those of the client: with settings of its own, a request sets up TLS
/// again for each connection.
pub(super) fn new_agent(
    proxy: Option<Proxy>,
    tls: TlsConfig,
    names: impl Resolver,
    connections: Connections,
) -> Agent {
    let (most, sent) = match connections {
        Connections::Many => (REQUESTS_MAX, BUFFER),
        Connections::Few => (CONNECTIONS_TO_PEER, SMALL_BUFFER),
    };
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .proxy(proxy)
        // Credentials must not follow a redirect, and those of S3 are for one host.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("archfs/", env!("CARGO_PKG_VERSION")))
        .accept_encoding("identity")
        .timeout_resolve(Some(CONNECT_TIMEOUT))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_recv_response(Some(ANSWER_TIMEOUT))
        .timeout_per_read(Some(SILENCE_MAX))
        .max_idle_connections(most)
        .max_idle_connections_per_host(most)
        .output_buffer_size(sent)
        .max_idle_age(IDLE_MAX)
        .tls_config(tls)
        .build();
    Agent::with_parts(config, LimitedConnector::default(), names)
}

/// `timeout`, or the time until the deadline if that is less.
fn limited(mut timeout: NextTimeout) -> NextTimeout {
    if let Some(left) = Deadline::left().filter(|left| *left < *timeout.after) {
        timeout.after = left.into();
    }
    timeout
}

/// Makes connections that keep to the deadline.
#[derive(Debug, Default)]
struct LimitedConnector(DefaultConnector);

impl Connector for LimitedConnector {
    type Out = Limited;

    fn connect(
        &self,
        details: &ConnectionDetails,
        _: Option<()>,
    ) -> Result<Option<Limited>, ureq::Error> {
        let details = ConnectionDetails {
            uri: details.uri,
            addrs: details.addrs.clone(),
            config: details.config,
            request_level: details.request_level,
            resolver: details.resolver,
            now: details.now,
            timeout: limited(details.timeout),
            current_time: details.current_time.clone(),
            run_connector: details.run_connector.clone(),
            register_shutdown: details.register_shutdown.clone(),
        };
        Ok(self.0.connect(&details, None)?.map(Limited))
    }
}

/// A connection that keeps to the deadline of the thread that uses it.
#[derive(Debug)]
struct Limited(Box<dyn Transport>);

impl Transport for Limited {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.0.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.0.transmit_output(amount, limited(timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.0.await_input(limited(timeout))
    }

    fn is_open(&mut self) -> bool {
        self.0.is_open()
    }

    fn is_tls(&self) -> bool {
        self.0.is_tls()
    }
}

/// The certificates to trust: those in `file`, or else those of the system, which SSL_CERT_FILE and
/// SSL_CERT_DIR replace, or else those that Mozilla trusts.
fn root_certificates(file: Option<&PathBuf>) -> RootCerts {
    let found = match file {
        Some(file) => rustls_native_certs::load_certs_from_paths(Some(file), None),
        None => rustls_native_certs::load_native_certs(),
    };
    for error in &found.errors {
        log::warn!("certificates: {error}");
    }
    let certificates: Vec<Certificate<'static>> =
        found.certs.iter().map(|found| Certificate::from_der(found).to_owned()).collect();
    match certificates.is_empty() {
        true => RootCerts::WebPki,
        false => RootCerts::Specific(Arc::new(certificates)),
    }
}

/// The proxy for `url`, as a URL, from the variables that curl(1) uses. `None` for a direct
/// connection.
fn proxy_for(url: &Uri, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let either = |name: &str| {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        set(name).or_else(|| set(&name.to_ascii_uppercase()))
    };
    let host = url.host()?.trim_matches(['[', ']']);
    let direct = either("no_proxy").unwrap_or_default();
    if direct.split([',', ' ']).any(|entry| covers(entry.trim(), host, url.port_u16())) {
        return None;
    }
    let own = if url.scheme_str() == Some("https") { "https_proxy" } else { "http_proxy" };
    let proxy = either(own).or_else(|| either("all_proxy"))?.trim().to_owned();
    Some(if proxy.contains("://") { proxy } else { format!("http://{proxy}") })
}

/// Whether an entry of no_proxy covers `host`: a name covers itself and what ends with it.
fn covers(entry: &str, host: &str, port: Option<u16>) -> bool {
    if entry == "*" {
        return true;
    }
    let (name, wanted) = match entry.rsplit_once(':') {
        // The colons of an IPv6 address do not end a name.
        Some((name, number)) if !name.contains(':') => (name, number.parse().ok()),
        _ => (entry, None),
    };
    let name = name.trim_start_matches(['*', '.']).trim_matches(['[', ']']).to_ascii_lowercase();
    let host = host.to_ascii_lowercase();
    let is_below = || host.strip_suffix(&name).is_some_and(|rest| rest.ends_with('.'));
    !name.is_empty() && (host == name || is_below()) && (wanted.is_none() || wanted == port)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn each_scheme_has_its_proxy_and_some_hosts_have_none() {
        let variables = [
            ("https_proxy", "secure:3128"),
            ("HTTP_PROXY", "http://plain:3128"),
            ("NO_PROXY", "localhost, .site.org,10.0.0.1,other.org:8080,::1"),
        ];
        let variable = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        for (url, expected) in [
            ("https://host/a", Some("http://secure:3128")),
            ("http://host/a", Some("http://plain:3128")),
            ("https://localhost:9000/a", None),
            ("https://minio.Site.org/a", None),
            ("https://site.org/a", None),
            ("https://website.org/a", Some("http://secure:3128")),
            ("http://10.0.0.1/a", None),
            ("https://other.org:8080/a", None),
            ("https://other.org/a", Some("http://secure:3128")),
            ("http://[::1]:80/a", None),
        ] {
            let found = proxy_for(&url.parse().unwrap(), variable);
            assert_eq!(found.as_deref(), expected, "{url}");
        }
        let all = |name: &str| (name == "ALL_PROXY").then(|| "socks5://p".to_owned());
        assert_eq!(proxy_for(&"http://h/".parse().unwrap(), all).as_deref(), Some("socks5://p"));
        assert_eq!(proxy_for(&"http://h/".parse().unwrap(), |_| None), None);
        assert!(covers("*", "anything", None));
    }
}
