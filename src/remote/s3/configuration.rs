//! Where objects are, and with which credentials they are read: the environment first, then the
//! profile in the files of the AWS command line ("Configuration and credential file settings" in
//! its user guide).
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use super::signature::Credentials;
use crate::error::{Error, Kind, Result};

/// The variables that say which store it is, and which user.
pub(in crate::remote) const VARIABLES: [&str; 8] = [
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_ACCESS_KEY_ID",
];

/// The region of AWS if none is configured. Most other stores accept any.
const REGION: &str = "us-east-1";

/// How to reach objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Configuration {
    pub(super) region: String,
    /// `None` for AWS.
    pub(super) endpoint: Option<String>,
    /// Whether the bucket is in the path of a URL, and not in the host.
    pub(super) is_path_style: bool,
    /// `None` to read without a signature.
    pub(super) credentials: Option<Credentials>,
    /// A file with the certificates to trust. As for the AWS command line, it is for S3 alone.
    pub(super) certificates: Option<PathBuf>,
}

/// What the configuration is read from: variables, and the files that they name.
pub(in crate::remote) struct Environment(Box<Variables>);

type Variables = dyn Fn(&str) -> Option<String> + Send + Sync;

impl Environment {
    pub(in crate::remote) fn of_process() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    pub(in crate::remote) fn of(
        variables: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self(Box::new(variables))
    }

    fn variable(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    /// The text of the file that the variable names, or of this one below the home directory. Empty
    /// if it does not exist.
    fn file(&self, variable: &str, below_home: &str) -> Result<String> {
        let own = || Some(PathBuf::from(self.variable("HOME")?).join(below_home));
        let Some(path) = self.variable(variable).map(PathBuf::from).or_else(own) else {
            return Ok(String::new());
        };
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
            read => {
                read.map_err(|error| Error::io(format!("cannot read {}", path.display()), error))
            }
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Environment")
    }
}

impl Configuration {
    /// The configuration for this environment.
    ///
    /// Fails with `Io` if a file cannot be read; `NotFound` if the profile that the user named does
    /// not exist.
    pub(super) fn read(environment: &Environment) -> Result<Self> {
        let named = environment.variable("AWS_PROFILE");
        let named = named.or_else(|| environment.variable("AWS_DEFAULT_PROFILE"));
        let profile = named.as_deref().unwrap_or("default");
        let config = environment.file("AWS_CONFIG_FILE", ".aws/config")?;
        let stored = environment.file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials")?;
        let in_config = format!("profile {profile}");
        let mut settings =
            section(&config, |name| name == in_config || (profile == "default" && name == profile));
        // Those in the file of credentials count more.
        settings.extend(section(&stored, |name| name == profile));
        if settings.is_empty() && named.is_some() {
            let context = format!("AWS_PROFILE: no profile {profile} in ~/.aws");
            return Err(Error::new(Kind::NotFound, context));
        }
        let services = settings.get("services").map(|name| format!("services {name}"));
        let services =
            services.map(|wanted| section(&config, |name| name == wanted)).unwrap_or_default();
        let region = ["AWS_REGION", "AWS_DEFAULT_REGION"]
            .iter()
            .find_map(|name| environment.variable(name))
            .or_else(|| settings.get("region").cloned())
            .unwrap_or_else(|| REGION.to_owned());
        let endpoint = endpoint(environment, &settings, &services);
        let style = settings.get("s3.addressing_style").map(String::as_str);
        let is_path_style = match style {
            Some("path") => true,
            Some("virtual") => false,
            _ => endpoint.is_some(),
        };
        let credentials = credentials(environment, &settings);
        let certificates = environment.variable("AWS_CA_BUNDLE");
        let certificates = certificates.or_else(|| settings.get("ca_bundle").cloned());
        let certificates = certificates.map(PathBuf::from);
        Ok(Self { region, endpoint, is_path_style, credentials, certificates })
    }
}

fn endpoint(environment: &Environment, settings: &Settings, services: &Settings) -> Option<String> {
    let is_ignored = environment.variable("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
    if is_ignored.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return None;
    }
    let given = environment.variable("AWS_ENDPOINT_URL_S3");
    given
        .or_else(|| environment.variable("AWS_ENDPOINT_URL"))
        .or_else(|| services.get("s3.endpoint_url").cloned())
        .or_else(|| settings.get("s3.endpoint_url").cloned())
        .or_else(|| settings.get("endpoint_url").cloned())
}

/// The credentials in the environment, or else in the profile.
fn credentials(environment: &Environment, settings: &Settings) -> Option<Credentials> {
    let of_environment = || {
        Some(Credentials {
            key: environment.variable("AWS_ACCESS_KEY_ID")?,
            secret: environment.variable("AWS_SECRET_ACCESS_KEY")?,
            token: environment.variable("AWS_SESSION_TOKEN"),
        })
    };
    let of_profile = || {
        let setting = |name: &str| settings.get(name).filter(|value| !value.is_empty()).cloned();
        Some(Credentials {
            key: setting("aws_access_key_id")?,
            secret: setting("aws_secret_access_key")?,
            token: setting("aws_session_token"),
        })
    };
    of_environment().or_else(of_profile)
}

/// Settings by their name. Those of a nested section have the name of that before theirs:
/// `s3.addressing_style`.
type Settings = BTreeMap<String, String>;

/// The settings of the section that `is_wanted` accepts by its name, in `text`. Of two sections
/// with the same name, settings of the later count.
fn section(text: &str, is_wanted: impl Fn(&str) -> bool) -> Settings {
    let mut settings = Settings::new();
    let mut is_in = false;
    let mut outer = String::new();
    for line in text.lines() {
        let is_indented = line.starts_with([' ', '\t']);
        let line = without_comment(line).trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_in = is_wanted(name.trim());
            outer.clear();
            continue;
        }
        let Some((name, value)) = line.split_once('=').filter(|_| is_in) else { continue };
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
        if is_indented && !outer.is_empty() {
            settings.insert(format!("{outer}.{name}"), value);
            continue;
        }
        outer = if value.is_empty() { name.clone() } else { String::new() };
        settings.insert(name, value);
    }
    settings
}

/// `line` without a comment: all of it, or what follows a space.
fn without_comment(line: &str) -> &str {
    if line.starts_with(['#', ';']) {
        return "";
    }
    let start = [" #", " ;", "\t#", "\t;"].iter().filter_map(|mark| line.find(mark)).min();
    &line[..start.unwrap_or(line.len())]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn environment(home: &Path, variables: &[(&str, &str)]) -> Environment {
        let text = |text: &str| text.to_owned();
        let mut variables: BTreeMap<_, _> =
            variables.iter().map(|(name, value)| (text(name), text(value))).collect();
        variables.insert(text("HOME"), text(home.to_str().unwrap()));
        Environment::of(move |name| variables.get(name).cloned())
    }

    fn write(home: &Path, name: &str, text: &str) {
        fs::create_dir_all(home.join(".aws")).unwrap();
        fs::write(home.join(".aws").join(name), text).unwrap();
    }

    #[test]
    fn without_any_setting_it_is_public_data_of_aws() {
        let home = tempfile::tempdir().unwrap();
        let found = Configuration::read(&environment(home.path(), &[])).unwrap();
        assert_eq!(found.region, REGION);
        assert!(found.endpoint.is_none() && found.credentials.is_none() && !found.is_path_style);
    }

    #[test]
    fn the_environment_comes_before_the_default_profile() {
        let home = tempfile::tempdir().unwrap();
        write(
            home.path(),
            "credentials",
            "[default]\naws_access_key_id=file\naws_secret_access_key=s\naws_session_token=t\n\
             [other]\naws_access_key_id=other\naws_secret_access_key=s\n",
        );
        write(home.path(), "config", "[default]\nregion=file-1\nendpoint_url=https://file\n");
        let read = |variables: &[_]| {
            let found = Configuration::read(&environment(home.path(), variables)).unwrap();
            let Credentials { key, token, .. } = found.credentials.unwrap();
            (key, token, found.region, found.endpoint)
        };
        let text = str::to_owned;
        let url = |url: &str| Some(url.to_owned());
        let expected = (text("file"), Some(text("t")), text("file-1"), url("https://file"));
        assert_eq!(read(&[]), expected);
        let keys = [("AWS_ACCESS_KEY_ID", "env"), ("AWS_SECRET_ACCESS_KEY", "s")];
        let others = [
            ("AWS_REGION", "env-1"),
            ("AWS_ENDPOINT_URL", "https://all"),
            ("AWS_ENDPOINT_URL_S3", "https://s3"),
        ];
        let expected = (text("env"), None, text("env-1"), url("https://s3"));
        assert_eq!(read(&[&keys[..], &others].concat()), expected);
        let named = [("AWS_PROFILE", "other"), ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")];
        let expected = (text("other"), None, text(REGION), None);
        assert_eq!(read(&named), expected);
        assert_eq!(read(&[&keys[..], &named].concat()).0, "env");
        let unknown = environment(home.path(), &[("AWS_PROFILE", "unknown")]);
        assert_eq!(Configuration::read(&unknown).unwrap_err().kind(), Kind::NotFound);
    }

    #[test]
    fn certificates_are_those_of_the_environment_or_else_of_the_profile() {
        let home = tempfile::tempdir().unwrap();
        let read = |variables: &[_]| {
            let found = Configuration::read(&environment(home.path(), variables)).unwrap();
            found.certificates.map(|path| path.to_str().unwrap().to_owned())
        };
        assert_eq!(read(&[("SSL_CERT_FILE", "/all.pem"), ("AWS_CA_BUNDLE", "")]), None);
        write(home.path(), "config", "[default]\nca_bundle = /profile.pem\n");
        assert_eq!(read(&[]).as_deref(), Some("/profile.pem"));
        assert_eq!(read(&[("AWS_CA_BUNDLE", "/s3.pem")]).as_deref(), Some("/s3.pem"));
    }

    #[test]
    fn a_profile_may_be_elsewhere_and_choose_the_style_of_addresses() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("site");
        fs::write(
            &path,
            "[profile a]\nservices = x\n[profile b]\nendpoint_url = http://b\ns3 =\n \
             addressing_style = virtual\n[services x]\ns3 =\n  endpoint_url = http://x\n",
        )
        .unwrap();
        let read = |profile| {
            let variables = [("AWS_CONFIG_FILE", path.to_str().unwrap()), ("AWS_PROFILE", profile)];
            let found = Configuration::read(&environment(home.path(), &variables)).unwrap();
            (found.endpoint.unwrap(), found.is_path_style)
        };
        assert_eq!(read("a"), ("http://x".to_owned(), true));
        assert_eq!(read("b"), ("http://b".to_owned(), false));
    }

    const CONFIG: &str = "
# a comment
[default]
region = eu-west-1
s3 =
    addressing_style = path   # as the site says
    max_concurrent_requests = 20
output = json

[profile lumi]
endpoint_url = https://lumidata.eu
Region=lumi-prod
[services x]
s3 =
  endpoint_url = http://localhost:9000
";

    #[test]
    fn finds_the_settings_of_a_section() {
        let default = section(CONFIG, |name| name == "default");
        let expected = [
            ("output", "json"),
            ("region", "eu-west-1"),
            ("s3", ""),
            ("s3.addressing_style", "path"),
            ("s3.max_concurrent_requests", "20"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(default, expected.into_iter().collect());
        let lumi = section(CONFIG, |name| name == "profile lumi");
        assert_eq!(lumi["endpoint_url"], "https://lumidata.eu");
        assert_eq!(lumi["region"], "lumi-prod");
        let services = section(CONFIG, |name| name == "services x");
        assert_eq!(services["s3.endpoint_url"], "http://localhost:9000");
        assert!(section(CONFIG, |name| name == "none").is_empty());
    }

    #[test]
    fn a_secret_may_have_any_character() {
        let text = "[default]\naws_secret_access_key = a#b;c=d/+==\n";
        let found = section(text, |name| name == "default");
        assert_eq!(found["aws_secret_access_key"], "a#b;c=d/+==");
    }
}
