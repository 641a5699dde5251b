//! An object in S3 or a compatible store, by the rules of the AWS command line for endpoints,
//! regions and credentials.

use std::ops::Range;

use jiff::{SignedDuration, Timestamp};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::Version;
use super::failure::Denial;
use super::http::{Request, origin};
use crate::error::{Error, Kind, Result};
use crate::sync::Mutex;

mod configuration;
mod profile;
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

/// An object.
#[derive(Debug)]
pub(super) struct Object {
    bucket: String,
    key: String,
    environment: Environment,
    /// Held for a copy or a change. Credentials are read from files without it.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    configuration: Configuration,
    /// Scheme and host that the server has named.
    origin: Option<String>,
    /// The time of the server minus that of this node.
    skew: SignedDuration,
    /// How often any of this has changed.
    generation: u64,
}

impl Object {
    /// The object at `path`: bucket and key.
    ///
    /// # Errors
    /// `Usage` if one is missing; `Io` if the configuration cannot be read.
    pub(super) fn of(path: &str, environment: Environment) -> Result<Self> {
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        // The bucket becomes part of a host.
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if bucket.is_empty() || key.is_empty() || !bucket.bytes().all(is_name) {
            let context = "not a valid URL of an object";
            return Err(Error::new(Kind::Usage, context).with_hint("write s3://BUCKET/KEY"));
        }
        let configuration = Configuration::read(&environment)?;
        let skew = SignedDuration::ZERO;
        let state = Mutex::new(State { configuration, origin: None, skew, generation: 0 });
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned(), environment, state })
    }

    /// The request for `range` of `version`, signed if there are credentials.
    pub(super) fn request(&self, range: &Range<u64>, version: Option<&Version>) -> Request {
        let state = self.state.lock();
        let (origin, path) = self.address(&state);
        let mut request = Request::new(format!("{origin}{path}"), range, version);
        request.generation = state.generation;
        let Configuration { region, credentials, .. } = &state.configuration;
        if let Some(credentials) = credentials {
            let host = origin.split_once("://").map_or("", |(_, host)| host).to_owned();
            request.headers.push(("host", host));
            let time = Timestamp::now().saturating_add(state.skew).unwrap_or_default();
            let signer = Signer { credentials, region, service: "s3", time };
            signer.sign_s3(&path, &mut request.headers);
        }
        request
    }

    /// Scheme and host, and the path, both as in the URL.
    fn address(&self, state: &State) -> (String, String) {
        let Configuration { region, endpoint, is_path_style, .. } = &state.configuration;
        let key = utf8_percent_encode(&self.key, IN_PATH);
        let bucket = &self.bucket;
        // A certificate for all buckets does not cover names with dots.
        let is_path_style = *is_path_style || bucket.contains('.');
        let amazon = || match region.starts_with("cn-") {
            true => format!("https://s3.{region}.amazonaws.com.cn"),
            false => format!("https://s3.{region}.amazonaws.com"),
        };
        let endpoint = endpoint.clone().unwrap_or_else(amazon);
        let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", &endpoint));
        let rest = rest.trim_end_matches('/');
        let (host, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (origin, path) = match is_path_style {
            true => (format!("{scheme}://{host}"), format!("{prefix}/{bucket}/{key}")),
            false => (format!("{scheme}://{bucket}.{host}"), format!("{prefix}/{key}")),
        };
        // Another host contains the bucket exactly if the first one does.
        (state.origin.clone().unwrap_or(origin), path)
    }

    /// As `Server::adapt`.
    pub(super) fn adapt(&self, denial: &Denial) -> bool {
        let mut state = self.state.lock();
        if state.generation != denial.generation {
            // Another thread has done it since the request was made.
            return true;
        }
        let skew = denial.date.map(|date| date.duration_since(Timestamp::now()));
        if let Some(region) = denial.region.as_ref().filter(|it| **it != state.configuration.region)
        {
            state.configuration.region.clone_from(region);
            state.origin = None;
            state.generation += 1;
            return true;
        }
        if denial.status.is_redirection() {
            let origin = denial.location.as_deref().and_then(origin);
            // Nobody between the server and archfs may change the bytes afterwards.
            let was_safe = denial.url.starts_with("https://");
            let origin = origin.filter(|origin| !was_safe || origin.starts_with("https://"));
            state.origin = origin.map(str::to_owned);
            state.generation += 1;
            return state.origin.is_some();
        }
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
        // Or another thread has read them.
        state.generation != denial.generation
    }

    /// What a user can do about a request that is not accepted.
    pub(super) fn hint(&self) -> &'static str {
        match self.state.lock().configuration.credentials {
            Some(Credentials { token: Some(_), .. }) => {
                "the session token may have expired: renew the credentials"
            }
            Some(_) => "check the credentials, AWS_PROFILE, AWS_REGION and the endpoint",
            None => {
                "archfs has found no credentials: set AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(path: &str, configuration: &Configuration) -> (String, String) {
        let (bucket, key) = path.split_once('/').unwrap();
        let object = Object {
            bucket: bucket.into(),
            key: key.into(),
            environment: Environment::of(|_| None),
            state: Mutex::new(State {
                configuration: configuration.clone(),
                origin: None,
                skew: SignedDuration::ZERO,
                generation: 0,
            }),
        };
        let state = object.state.lock();
        object.address(&state)
    }

    #[test]
    fn addresses_are_those_of_the_aws_command_line() {
        let mut configuration = Configuration { region: "eu-north-1".into(), ..Default::default() };
        let address = |path, configuration: &Configuration| {
            let (origin, path) = object(path, configuration);
            format!("{origin}{path}")
        };
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
