//! The files with the settings and credentials of the AWS command line ("Configuration and
//! credential file settings" in its user guide).

use std::collections::BTreeMap;

/// Settings by their name. Those of a nested section have the name of that before theirs:
/// `s3.addressing_style`.
pub(super) type Settings = BTreeMap<String, String>;

/// The settings of the section that `is_wanted` accepts by its name, in `text`. Of two sections
/// with the same name, settings of the later count.
pub(super) fn section(text: &str, is_wanted: impl Fn(&str) -> bool) -> Settings {
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
    use super::*;

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
