//! The proxy for a URL, from the variables that curl(1) uses.

use ureq::http::Uri;

/// The proxy for `url`, as a URL; `None` for a direct connection.
pub(super) fn for_url(url: &Uri, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
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
mod tests {
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
            let found = for_url(&url.parse().unwrap(), variable);
            assert_eq!(found.as_deref(), expected, "{url}");
        }
        let all = |name: &str| (name == "ALL_PROXY").then(|| "socks5://p".to_owned());
        assert_eq!(for_url(&"http://h/".parse().unwrap(), all).as_deref(), Some("socks5://p"));
        assert_eq!(for_url(&"http://h/".parse().unwrap(), |_| None), None);
        assert!(covers("*", "anything", None));
    }
}
