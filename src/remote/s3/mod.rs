//! An object in S3 or a compatible store, by the rules of the AWS command line for endpoints,
//! regions and credentials.

use std::fmt;
use std::ops::Range;

use jiff::{SignedDuration, Timestamp};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::Version;
use super::address::{Origin, origin};
use super::failure::Denial;
use super::http::Request;
use crate::error::{Error, Kind, Result};
use crate::sync::Mutex;

mod configuration;
mod signature;

use configuration::Configuration;
pub(super) use configuration::Environment;
pub(super) use configuration::VARIABLES;
use signature::{Credentials, Signer};

/// What is encoded in the path of a signed request (AWS, "Create a signed AWS API request").
const IN_PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The difference between the clocks that is corrected. AWS accepts 15 minutes.
const SKEW_MIN: SignedDuration = SignedDuration::from_mins(1);

/// How hosts of Amazon end.
const AMAZON: &str = ".amazonaws.com";
const AMAZON_CHINA: &str = ".amazonaws.com.cn";

pub(super) struct Object {
    bucket: String,
    key: String,
    environment: Environment,
    /// Held for a copy or a change. Credentials are read from files without it.
    state: Mutex<State>,
}

struct State {
    configuration: Configuration,
    target: Option<Target>,
    /// The time of the server minus that of this node.
    skew: SignedDuration,
    /// How often any of this has changed.
    generation: u64,
}

/// Where the store has sent archfs.
enum Target {
    /// Another server of the same store: scheme and host.
    Own(String),
    /// A URL of a server that gets neither a signature nor a session token.
    Foreign(String),
}

impl fmt::Debug for Object {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // All the rest may have secrets.
        formatter.write_str("Object")
    }
}

impl State {
    fn set(&mut self, target: Option<Target>) {
        self.target = target;
        self.generation += 1;
    }
}

impl Object {
    /// The object at `path`: bucket and key.
    ///
    /// Fails with `Usage` if one is missing; `Io` if the configuration cannot be read.
    pub(super) fn of(path: &str, environment: Environment) -> Result<Self> {
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        // The bucket becomes part of a host.
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if bucket.is_empty() || key.is_empty() || !bucket.bytes().all(is_name) {
            let hint = match bucket.contains([':', '@']) {
                true => "write no keys in it: archfs reads them from variables or a profile of AWS",
                false => "write s3://BUCKET/KEY",
            };
            let error = Error::new(Kind::Usage, "not a valid URL of an object");
            return Err(error.with_hint(hint));
        }
        let configuration = Configuration::read(&environment)?;
        let skew = SignedDuration::ZERO;
        let state = Mutex::new(State { configuration, target: None, skew, generation: 0 });
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned(), environment, state })
    }

    /// The request for `range` of `version`, signed if there are credentials.
    pub(super) fn request(&self, range: &Range<u64>, version: Option<&Version>) -> Request {
        let state = self.state.lock();
        if let Some(Target::Foreign(url)) = &state.target {
            let mut request = Request::new(url.clone(), range, version);
            request.generation = state.generation;
            request.is_redirected = true;
            return request;
        }
        let (mut origin, path) = self.address(&state.configuration);
        if let Some(Target::Own(target)) = &state.target {
            // It contains the bucket exactly if the first one does.
            origin.clone_from(target);
        }
        let mut request = Request::new(format!("{origin}{path}"), range, version);
        request.generation = state.generation;
        let Configuration { region, credentials, certificates, .. } = &state.configuration;
        request.certificates.clone_from(certificates);
        if let Some(credentials) = credentials {
            let host = origin.split_once("://").map_or("", |(_, host)| host).to_owned();
            request.headers.push(("host", host));
            let time = Timestamp::now().saturating_add(state.skew).unwrap_or_default();
            let signer = Signer { credentials, region, service: "s3", time };
            signer.sign_s3(&path, &mut request.headers);
        }
        request
    }

    pub(super) fn endpoint(&self) -> String {
        self.address(&self.state.lock().configuration).0
    }

    /// Scheme and host, and the path, both as in the URL.
    fn address(&self, configuration: &Configuration) -> (String, String) {
        let Configuration { region, endpoint, is_path_style, .. } = configuration;
        let key = utf8_percent_encode(&self.key, IN_PATH);
        let bucket = &self.bucket;
        // A certificate for all buckets does not cover names with dots.
        let is_path_style = *is_path_style || bucket.contains('.');
        let amazon = || match region.starts_with("cn-") {
            true => format!("https://s3.{region}{AMAZON_CHINA}"),
            false => format!("https://s3.{region}{AMAZON}"),
        };
        let endpoint = endpoint.clone().unwrap_or_else(amazon);
        let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", &endpoint));
        let rest = rest.trim_end_matches('/');
        let (host, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        match is_path_style {
            true => (format!("{scheme}://{host}"), format!("{prefix}/{bucket}/{key}")),
            false => (format!("{scheme}://{bucket}.{host}"), format!("{prefix}/{key}")),
        }
    }

    /// What `url` is, to which the store has sent archfs.
    fn target(&self, url: String, configuration: &Configuration) -> Option<Target> {
        let store = |url: &str| {
            let mut server = Origin::of(url)?;
            let bucket = format!("{}.", self.bucket.to_ascii_lowercase());
            let host = server.host.strip_prefix(&bucket).unwrap_or(&server.host);
            server.host = if is_amazon(host) { AMAZON.to_owned() } else { host.to_owned() };
            Some(server)
        };
        let (own, _) = self.address(configuration);
        Some(match store(&url)?.is_as_good_as(&store(&own)?) {
            true => Target::Own(origin(&url)?),
            false => Target::Foreign(url),
        })
    }

    /// Returns to the endpoint, because the server that it named has failed.
    pub(super) fn forget_redirect(&self, generation: u64) {
        let mut state = self.state.lock();
        if state.target.is_some() && state.generation == generation {
            state.set(None);
        }
    }

    /// As `Server::adapt`.
    pub(super) fn adapt(&self, denial: &Denial) -> bool {
        let mut state = self.state.lock();
        if state.generation != denial.generation {
            // Another thread has done it since the request was made.
            return true;
        }
        let is_foreign = matches!(state.target, Some(Target::Foreign(_)));
        let is_other = |region: &&String| **region != state.configuration.region;
        if let Some(region) = denial.region.as_ref().filter(|_| !is_foreign).filter(is_other) {
            state.configuration.region.clone_from(region);
            state.set(None);
            return true;
        }
        if denial.status.is_redirection() {
            let target = denial.target().and_then(|url| self.target(url, &state.configuration));
            let is_found = target.is_some();
            state.set(target);
            return is_found;
        }
        if is_foreign {
            state.set(None);
            return true;
        }
        let skew = denial.date.map(|date| date.duration_since(Timestamp::now()));
        let is_of_time = denial.code.as_deref() == Some("RequestTimeTooSkewed");
        if let Some(skew) = skew.filter(|skew| is_of_time || (*skew - state.skew).abs() > SKEW_MIN)
            && (skew - state.skew).abs() > SignedDuration::from_secs(1)
        {
            state.skew = skew;
            state.generation += 1;
            return true;
        }
        let before = state.configuration.credentials.clone();
        drop(state);
        // A site may have replaced those that have expired.
        let Ok(Configuration { credentials, .. }) = Configuration::read(&self.environment) else {
            return false;
        };
        let is_new = credentials.is_some() && credentials != before;
        let mut state = self.state.lock();
        if is_new && state.generation == denial.generation {
            state.configuration.credentials = credentials;
            state.generation += 1;
        }
        if state.generation == denial.generation && state.target.is_some() {
            state.set(None);
        }
        // Or another thread has changed it.
        state.generation != denial.generation
    }

    /// Whether the user has named the store. If not, it is Amazon's.
    pub(super) fn has_endpoint(&self) -> bool {
        self.state.lock().configuration.endpoint.is_some()
    }

    pub(super) fn hint(&self, denial: &Denial) -> &'static str {
        if denial.is_redirected {
            return "archfs signs requests only for the endpoint: set AWS_ENDPOINT_URL to that server";
        }
        match self.state.lock().configuration.credentials {
            Some(Credentials { token: Some(_), .. }) => {
                "the session token may have expired: renew the credentials"
            }
            Some(_) => "check the credentials, AWS_PROFILE, AWS_REGION and AWS_ENDPOINT_URL",
            None => {
                "archfs has found no credentials: set AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a store that is not Amazon's, also \
                 AWS_ENDPOINT_URL"
            }
        }
    }
}

/// What may help if the user has not named the store.
pub(super) const NO_ENDPOINT: &str =
    "no endpoint is set, so archfs asks Amazon's S3; for another store, set AWS_ENDPOINT_URL";

/// Whether `host`, without a bucket, is S3 of Amazon. Names such as `s3-x.REGION.elb.amazonaws.com`
/// are of its customers.
fn is_amazon(host: &str) -> bool {
    let name = host.strip_suffix(AMAZON).or_else(|| host.strip_suffix(AMAZON_CHINA));
    let mut labels = name.unwrap_or_default().split('.');
    let is_s3 = labels.next().is_some_and(|name| name == "s3" || name.starts_with("s3-"));
    let mut labels = labels.skip_while(|label| *label == "dualstack");
    let is_region =
        |label: &str| label.contains('-') && label.ends_with(|c: char| c.is_ascii_digit());
    is_s3 && labels.next().is_none_or(is_region) && labels.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(path: &str, configuration: &Configuration) -> Object {
        let (bucket, key) = path.split_once('/').unwrap();
        Object {
            bucket: bucket.into(),
            key: key.into(),
            environment: Environment::of(|_| None),
            state: Mutex::new(State {
                configuration: configuration.clone(),
                target: None,
                skew: SignedDuration::ZERO,
                generation: 0,
            }),
        }
    }

    #[test]
    fn addresses_are_those_of_the_aws_command_line() {
        let mut configuration = Configuration { region: "eu-north-1".into(), ..Default::default() };
        let address = |path, configuration: &Configuration| {
            let (origin, path) = object(path, configuration).address(configuration);
            format!("{origin}{path}")
        };
        let odd = "https://data.s3.eu-north-1.amazonaws.com//a/../b/./%2525%3F%23%40";
        assert_eq!(address("data//a/../b/./%25?#@", &configuration), odd, "keys are no paths");
        let amazon = "https://data.s3.eu-north-1.amazonaws.com/a/b%20c%2B.tar";
        assert_eq!(address("data/a/b c+.tar", &configuration), amazon);
        let dotted = "https://s3.eu-north-1.amazonaws.com/my.data/a";
        assert_eq!(address("my.data/a", &configuration), dotted);
        configuration.endpoint = Some("https://lumidata.eu/".into());
        assert_eq!(address("data/a", &configuration), "https://data.lumidata.eu/a");
        configuration.is_path_style = true;
        assert_eq!(address("data/a", &configuration), "https://lumidata.eu/data/a");
        configuration.endpoint = Some("http://127.0.0.1:9000/prefix".into());
        assert_eq!(address("data/a", &configuration), "http://127.0.0.1:9000/prefix/data/a");
    }

    #[test]
    fn keys_in_a_url_are_refused() {
        for path in ["KEY:secret@bucket/key", "KEY:se/cret@bucket/key", "KEY@bucket/key"] {
            let error = Object::of(path, Environment::of(|_| None)).unwrap_err();
            assert!(error.hint().unwrap().contains("no keys in it"), "{error:?}");
        }
    }

    #[test]
    fn only_servers_of_the_store_are_its_own() {
        let mut configuration = Configuration { region: "eu-north-1".into(), ..Default::default() };
        let is_own = |url: &str, configuration: &Configuration| {
            let target = object("Data/a", configuration).target(url.to_owned(), configuration);
            matches!(target, Some(Target::Own(origin)) if url.starts_with(&origin))
        };
        for (host, expected) in [
            ("data.s3.us-west-2.amazonaws.com", true),
            ("data.s3-us-west-2.amazonaws.com", true),
            ("data.s3.dualstack.us-west-2.amazonaws.com", true),
            ("data.s3.amazonaws.com", true),
            ("s3.us-west-2.amazonaws.com", true),
            ("other.s3.us-west-2.amazonaws.com", false),
            ("s3-evil-1.us-west-2.elb.amazonaws.com", false),
            ("ec2-1-2-3-4.us-west-2.compute.amazonaws.com", false),
            ("s3.us-west-2.amazonaws.com.evil.org", false),
            ("data.s3.us-west-2.amazonaws.com:444", false),
        ] {
            assert_eq!(is_own(&format!("https://{host}/a"), &configuration), expected, "{host}");
        }
        configuration.endpoint = Some("http://store.org:9000".into());
        for (url, expected) in [
            ("http://data.store.org:9000/a", true),
            ("http://store.org:9000/data/a", true),
            ("https://store.org/data/a", true),
            ("http://store.org:9001/data/a", false),
            ("http://evil.store.org:9000/data/a", false),
            ("http://s3.amazonaws.com:9000/a", false),
        ] {
            assert_eq!(is_own(url, &configuration), expected, "{url}");
        }
    }

    #[test]
    fn a_bucket_and_a_key_are_needed() {
        for path in ["", "bucket", "bucket/", "/key", "a@b/key", "a b/key"] {
            assert_eq!(
                Object::of(path, Environment::of(|_| None)).unwrap_err().kind(),
                Kind::Usage,
                "{path}"
            );
        }
    }
}
