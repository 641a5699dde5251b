//! What a URL leads to, without what differs each time: the parameters of a signature, passwords,
//! temporary keys.
//!
//! An ETag is unique only within one resource (RFC 9110, section 8.8.3), and a query can choose the
//! resource. So what archfs keeps of an archive for another day is kept under this identity.

use super::s3;
use crate::url;

/// Parameters of a query that sign it. They count as such if all of the first list are there.
const SIGNATURES: [(&[&str], &[&str]); 8] = [
    (
        &["x-amz-signature"],
        &[
            "x-amz-algorithm",
            "x-amz-credential",
            "x-amz-date",
            "x-amz-expires",
            "x-amz-security-token",
            "x-amz-signature",
            "x-amz-signedheaders",
        ],
    ),
    (
        &["x-goog-signature"],
        &[
            "x-goog-algorithm",
            "x-goog-credential",
            "x-goog-date",
            "x-goog-expires",
            "x-goog-signature",
            "x-goog-signedheaders",
        ],
    ),
    // S3 before version 4.
    (
        &["awsaccesskeyid", "signature"],
        &["awsaccesskeyid", "expires", "signature", "x-amz-security-token"],
    ),
    (&["googleaccessid", "signature"], &["expires", "googleaccessid", "signature"]),
    // Alibaba.
    (
        &["x-oss-signature"],
        &[
            "x-oss-additional-headers",
            "x-oss-credential",
            "x-oss-date",
            "x-oss-expires",
            "x-oss-security-token",
            "x-oss-signature",
            "x-oss-signature-version",
        ],
    ),
    (
        &["ossaccesskeyid", "signature"],
        &["expires", "ossaccesskeyid", "security-token", "signature"],
    ),
    // CloudFront.
    (
        &["key-pair-id", "signature"],
        &["expires", "hash-algorithm", "key-pair-id", "policy", "signature"],
    ),
    // A shared access signature of Azure.
    (
        &["sig", "sv"],
        &[
            "se", "sig", "sip", "ske", "skoid", "sks", "skt", "sktid", "skv", "sp", "spr", "sr",
            "srt", "ss", "st", "sv",
        ],
    ),
];

/// Identifies what the URL with this name leads to, also on another day. With other settings, an
/// object may be in another store, so these count.
pub fn lasting_identity(name: &str) -> Vec<u8> {
    let url = url::of_name(name);
    if url.starts_with("s3://") {
        return object(&url, |name| std::env::var(name).unwrap_or_default());
    }
    without_signature(&url).into_bytes()
}

/// An object in the store that the variables of the environment choose.
fn object(url: &str, variable: impl Fn(&str) -> String) -> Vec<u8> {
    // Keys that come with a token are for some hours.
    let is_temporary = !variable("AWS_SESSION_TOKEN").is_empty();
    let mut identity = url.as_bytes().to_owned();
    for name in s3::VARIABLES {
        identity.push(0);
        if name != "AWS_ACCESS_KEY_ID" || !is_temporary {
            identity.extend(variable(name).bytes());
        }
    }
    identity
}

/// `url` without password, signature and fragment.
fn without_signature(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let rest = rest.split('#').next().unwrap_or_default();
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let user = user.split(':').next().unwrap_or_default();
    let key =
        |parameter: &str| parameter.split('=').next().unwrap_or_default().to_ascii_lowercase();
    let keys: Vec<_> = query.split('&').map(key).collect();
    let is_there = |mark: &&str| keys.iter().any(|key| key == mark);
    let signed = SIGNATURES.iter().filter(|(marks, _)| marks.iter().all(is_there));
    let signs: Vec<_> = signed.flat_map(|(_, parameters)| parameters.iter()).collect();
    let parameters = query.split('&').zip(&keys);
    let kept = parameters.filter(|(_, key)| !signs.iter().any(|sign| **sign == key.as_str()));
    let kept: Vec<_> = kept.map(|(parameter, _)| parameter).collect();
    format!("{scheme}://{user}@{host}{path}?{}", kept.join("&"))
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn the_query_counts_and_its_signature_does_not() {
        for (url, expected) in [
            ("https://h/a", "https://@h/a?"),
            ("https://me:old@h/a?id=1", "https://me@h/a?id=1"),
            ("https://h/a?id=3#part", "https://@h/a?id=3"),
            (
                "https://h/a?versionId=7&X-Amz-Date=1&X-Amz-Signature=ab&x-amz-security-token=t",
                "https://@h/a?versionId=7",
            ),
            ("https://h/a?X-Amz-Date=1", "https://@h/a?X-Amz-Date=1"),
            ("https://h/a?X-Goog-Signature=1&generation=4", "https://@h/a?generation=4"),
            ("https://h/a?AWSAccessKeyId=k&Signature=s&Expires=9&id=2", "https://@h/a?id=2"),
            ("https://h/a?Expires=9&id=2", "https://@h/a?Expires=9&id=2"),
            (
                "https://h/a?x-oss-date=1&x-oss-signature=s&x-oss-process=p",
                "https://@h/a?x-oss-process=p",
            ),
            ("https://h/a?OSSAccessKeyId=k&Expires=9&Signature=s&id=2", "https://@h/a?id=2"),
            ("https://h/a?Policy=p&Signature=s&Key-Pair-Id=k", "https://@h/a?"),
            ("https://h/a?sv=2024&sr=b&sig=x&snapshot=5", "https://@h/a?snapshot=5"),
            ("https://h/a?se=2&sig=x", "https://@h/a?se=2&sig=x"),
        ] {
            assert_eq!(without_signature(url), expected, "{url}");
        }
    }

    #[test]
    fn an_object_is_another_one_in_another_store_but_not_with_another_temporary_key() {
        let identity = |endpoint: &str, key: &str, token: &str| {
            object("s3://bucket/key", |name| {
                let value = match name {
                    "AWS_ENDPOINT_URL" => endpoint,
                    "AWS_ACCESS_KEY_ID" => key,
                    "AWS_SESSION_TOKEN" => token,
                    _ => "",
                };
                value.to_owned()
            })
        };
        assert_ne!(identity("a", "", ""), identity("b", "", ""));
        assert_ne!(identity("a", "k", ""), identity("a", "l", ""));
        assert_eq!(identity("a", "k", "t"), identity("a", "l", "u"));
    }
}
