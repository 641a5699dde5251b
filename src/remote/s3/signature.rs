//! Signs requests: AWS Signature Version 4, as "Create a signed AWS API request" in the reference
//! of AWS Identity and Access Management describes it.

use std::fmt;

use jiff::Timestamp;
use ring::{digest, hmac};

/// The keys of a user.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) key: String,
    pub(super) secret: String,
    /// Of a session.
    pub(super) token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credentials")
    }
}

/// What a signature is made with, besides the request.
pub(super) struct Signer<'s> {
    pub(super) credentials: &'s Credentials,
    pub(super) region: &'s str,
    pub(super) service: &'static str,
    pub(super) time: Timestamp,
}

impl Signer<'_> {
    /// Signs a request for `path`, which is encoded, with all of `headers`, and adds to them what
    /// S3 needs.
    pub(super) fn sign_s3(&self, path: &str, headers: &mut Vec<(&'static str, String)>) {
        headers.push(("x-amz-content-sha256", hex(&sha256(b""))));
        self.sign(path, "", headers);
    }

    /// The same for any service, and a path with a `query` whose parameters are encoded and sorted.
    fn sign(&self, path: &str, query: &str, headers: &mut Vec<(&'static str, String)>) {
        let time = self.time.strftime("%Y%m%dT%H%M%SZ").to_string();
        headers.push(("x-amz-date", time.clone()));
        if let Some(token) = &self.credentials.token {
            headers.push(("x-amz-security-token", token.clone()));
        }
        headers.sort();
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines: String =
            headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let body = hex(&sha256(b""));
        let request = format!("GET\n{path}\n{query}\n{lines}\n{names}\n{body}");
        let date = &time[..8];
        let scope = format!("{date}/{}/{}/aws4_request", self.region, self.service);
        let to_sign =
            format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&sha256(request.as_bytes())));
        let first = format!("AWS4{}", self.credentials.secret).into_bytes();
        let parts = [date, self.region, self.service, "aws4_request", &to_sign];
        let signature = parts.into_iter().fold(first, |key, part| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
            hmac::sign(&key, part.as_bytes()).as_ref().to_vec()
        });
        let (key, signature) = (&self.credentials.key, hex(&signature));
        headers.push((
            "authorization",
            format!(
                "AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, \
                 Signature={signature}"
            ),
        ));
    }
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA256, bytes).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signs as in a published example, and returns the signature.
    fn signature(
        secret: &str,
        service: &'static str,
        time: &str,
        sign: impl Fn(&Signer<'_>) -> Vec<(&'static str, String)>,
    ) -> String {
        let credentials = Credentials { key: "AKID".into(), secret: secret.into(), token: None };
        let time = time.parse().unwrap();
        let signer = Signer { credentials: &credentials, region: "us-east-1", service, time };
        let headers = sign(&signer);
        let (_, value) = headers.iter().find(|(name, _)| *name == "authorization").unwrap();
        value.rsplit_once("Signature=").unwrap().1.to_owned()
    }

    /// "Signature Calculations for the Authorization Header" in the reference of the S3 API: GET
    /// Object, and GET Bucket Lifecycle.
    #[test]
    fn signs_as_the_examples_of_s3() {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        let host = || ("host", "examplebucket.s3.amazonaws.com".to_owned());
        let object = signature(secret, "s3", "2013-05-24T00:00:00Z", |signer| {
            let mut headers = vec![host(), ("range", "bytes=0-9".to_owned())];
            signer.sign_s3("/test.txt", &mut headers);
            headers
        });
        assert_eq!(object, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
        let lifecycle = signature(secret, "s3", "2013-05-24T00:00:00Z", |signer| {
            let mut headers = vec![host(), ("x-amz-content-sha256", hex(&sha256(b"")))];
            signer.sign("/", "lifecycle=", &mut headers);
            headers
        });
        assert_eq!(lifecycle, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    }

    /// get-vanilla and get-vanilla-query-order-key-case of the test suite of Signature Version 4.
    #[test]
    fn signs_as_the_test_suite() {
        let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
        let sign = |query: &'static str| {
            signature(secret, "service", "2015-08-30T12:36:00Z", |signer| {
                let mut headers = vec![("host", "example.amazonaws.com".to_owned())];
                signer.sign("/", query, &mut headers);
                headers
            })
        };
        assert_eq!(sign(""), "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
        let query = "Param1=value1&Param2=value2";
        assert_eq!(sign(query), "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
    }

    #[test]
    fn credentials_are_not_shown() {
        let secret = "SECRET".to_owned();
        let credentials = Credentials { key: secret.clone(), secret, token: Some("SECRET".into()) };
        assert!(!format!("{credentials:?}").contains("SECRET"));
    }
}
