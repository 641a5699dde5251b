//! Addresses of servers. They are kept for some time, since a name is needed for each request.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use crate::sync::Mutex;

/// How long the addresses of a name are used. If the name cannot be looked up then, they are used
/// further.
const KEPT: Duration = Duration::from_secs(60);

/// Looks up names, at most once in a while.
#[derive(Default)]
pub(super) struct KnownNames {
    /// Held for a lookup or an insertion, not while a name server is asked.
    known: Mutex<HashMap<String, (Instant, Vec<SocketAddr>)>>,
    inner: DefaultResolver,
}

impl fmt::Debug for KnownNames {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("KnownNames")
    }
}

impl Resolver for KnownNames {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let key = format!("{:?} {:?}", uri.scheme(), uri.authority());
        let found = self.known.lock().get(&key).cloned();
        let kept = |addresses: Vec<SocketAddr>| {
            let mut list = self.empty();
            addresses.into_iter().for_each(|address| list.push(address));
            list
        };
        if let Some((since, addresses)) = &found
            && since.elapsed() < KEPT
        {
            return Ok(kept(addresses.clone()));
        }
        match self.inner.resolve(uri, config, timeout) {
            Ok(new) => {
                self.known.lock().insert(key, (Instant::now(), new.to_vec()));
                Ok(new)
            }
            Err(error) => found.map(|(_, addresses)| kept(addresses)).ok_or(error),
        }
    }
}
