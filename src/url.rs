//! Archives that are named by URLs, and the secrets in those.
//!
//! A URL may have a password or the signature of a presigned request. So archfs shows, records and
//! passes on only the *name* of a URL, which lacks user, password and query. The URLs themselves
//! are here and in the environment of the archfs processes that this one starts, which only their
//! user can read. A word with a mistyped scheme may have the same secrets: `shown` hides them in
//! whatever looks like a URL, valid or not, and `shown_in` in each line for people.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::sync::{Mutex, OnceLock};

/// Schemes of URLs that archfs reads.
const SCHEMES: [&str; 3] = ["https", "http", "s3"];

/// What a name has in place of something hidden.
const HIDDEN: &str = "...";

/// How many URLs in the path of another one are shown. A path may have any number of them.
const DEPTH_MAX: usize = 8;

/// The parameters that sign a query, in lower case. They count as such if all of `secret` and
/// `marks` are there.
struct Signature {
    /// Each makes a query a secret, wherever it stands.
    secret: &'static [&'static str],
    marks: &'static [&'static str],
    others: &'static [&'static str],
}

const SIGNATURES: [Signature; 8] = [
    Signature {
        secret: &["x-amz-signature"],
        marks: &[],
        others: &[
            "x-amz-algorithm",
            "x-amz-credential",
            "x-amz-date",
            "x-amz-expires",
            "x-amz-security-token",
            "x-amz-signedheaders",
        ],
    },
    Signature {
        secret: &["x-goog-signature"],
        marks: &[],
        others: &[
            "x-goog-algorithm",
            "x-goog-credential",
            "x-goog-date",
            "x-goog-expires",
            "x-goog-signedheaders",
        ],
    },
    // S3 before version 4.
    Signature {
        secret: &["awsaccesskeyid", "signature"],
        marks: &[],
        others: &["expires", "x-amz-security-token"],
    },
    Signature { secret: &["googleaccessid", "signature"], marks: &[], others: &["expires"] },
    // Alibaba.
    Signature {
        secret: &["x-oss-signature"],
        marks: &[],
        others: &[
            "x-oss-additional-headers",
            "x-oss-credential",
            "x-oss-date",
            "x-oss-expires",
            "x-oss-security-token",
            "x-oss-signature-version",
        ],
    },
    Signature {
        secret: &["ossaccesskeyid", "signature"],
        marks: &[],
        others: &["expires", "security-token"],
    },
    // CloudFront.
    Signature {
        secret: &["key-pair-id", "signature"],
        marks: &[],
        others: &["expires", "hash-algorithm", "policy"],
    },
    // A shared access signature of Azure.
    Signature {
        secret: &["sig"],
        marks: &["sv"],
        others: &[
            "se", "sip", "ske", "skoid", "sks", "skt", "sktid", "skv", "sp", "spr", "sr", "srt",
            "ss", "st",
        ],
    },
];

/// More parameters that make a query a secret: tokens, and all that begin as those of Amazon,
/// Google and Alibaba do.
const TOKENS: [&str; 2] = ["token", "access_token"];
const SECRET_PREFIXES: [&str; 3] = ["x-amz-", "x-goog-", "x-oss-"];

/// The environment variable with the URLs of names that lack a part of them: JSON.
const VARIABLE: &str = "ARCHFS_URLS";

/// URLs by name. Held for a lookup or an insertion.
static URLS: OnceLock<Mutex<BTreeMap<String, String>>> = OnceLock::new();

/// Whether `path` is a URL, or the name of one.
pub fn is_url(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':').unwrap_or(0);
    let (scheme, rest) = bytes.split_at(colon);
    rest.starts_with(b"://") && is_read(scheme)
}

/// The last component of the path in a URL, or of a path of a file.
pub fn file_name(path: &Path) -> Option<&[u8]> {
    let name = path.file_name()?.as_bytes();
    let query = |name: &[u8]| name.windows(4).rposition(|bytes| bytes == b"?...");
    let end = if is_url(path) { query(name) } else { None };
    name.get(..end.unwrap_or(name.len()))
}

/// The URL with this name, which is a URL itself if that has nothing to hide.
pub fn of_name(name: &str) -> String {
    urls().lock().get(name).cloned().unwrap_or_else(|| with_plain_scheme(name))
}

/// The URL of the file whose name is that of the archive with `suffix` after it. `None` if the
/// server could not find that, because the URL has a query.
pub fn beside(archive: &Path, suffix: &str) -> Option<PathBuf> {
    let name = text(archive);
    let url = of_name(&name);
    if !url.starts_with("s3://") && url.contains(['?', '#']) {
        return None;
    }
    Some(name_of(&format!("{url}{suffix}")).into())
}

/// `arguments` with names in place of URLs, and without the secrets of all other words that look
/// like one. Those after the first `--` stay as they are if `before_separator`. A secret is also
/// removed from what other users see as the command line of this process.
pub fn named(arguments: Vec<OsString>, before_separator: bool) -> Vec<OsString> {
    let end = match before_separator {
        true => arguments.iter().position(|word| word == "--").unwrap_or(arguments.len()),
        false => arguments.len(),
    };
    let name = |(nth, word): (usize, OsString)| {
        let text = word.to_string_lossy();
        let Some(start) = start_of_url(&text).filter(|_| nth < end) else { return word };
        let (option, url) = text.split_at(start);
        let name = match option.is_empty() && is_url(Path::new(url)) {
            true => name_of(url),
            false => format!("{option}{}", shown(url)),
        };
        if name == text {
            return word;
        }
        hide(word.as_bytes(), name.as_bytes());
        name.into()
    };
    arguments.into_iter().enumerate().map(name).collect()
}

/// The URLs of names that lack a part of them.
pub fn secrets() -> BTreeMap<String, String> {
    urls().lock().clone()
}

/// Adds URLs of names from the process that started this one.
pub fn learn(secrets: BTreeMap<String, String>) {
    urls().lock().extend(secrets);
}

/// What an archfs that this process starts needs in its environment.
pub fn environment() -> Option<(&'static str, OsString)> {
    let urls = urls().lock();
    let text = serde_json::to_string(&*urls).ok().filter(|_| !urls.is_empty())?;
    Some((VARIABLE, text.into()))
}

fn urls() -> &'static Mutex<BTreeMap<String, String>> {
    URLS.get_or_init(|| {
        let inherited = std::env::var(VARIABLE).unwrap_or_default();
        Mutex::new(serde_json::from_str(&inherited).unwrap_or_default())
    })
}

/// The name of `url`, by which `of_name` finds it again.
fn name_of(url: &str) -> String {
    let mut urls = urls().lock();
    if urls.contains_key(url) {
        return url.to_owned();
    }
    let url = with_plain_scheme(url);
    let first = shown(&url);
    if first == url {
        return first;
    }
    // URLs that differ only in their secrets are different archives.
    let numbered = (2..).map(|number| format!("{first}{number}"));
    let names = std::iter::once(first.clone()).chain(numbered);
    let free = |name: &String| urls.get(name).is_none_or(|found| *found == url);
    let name = names.into_iter().find(free).unwrap_or(first);
    urls.insert(name.clone(), url);
    name
}

fn is_read(scheme: &[u8]) -> bool {
    SCHEMES.iter().any(|read| scheme.eq_ignore_ascii_case(read.as_bytes()))
}

/// `url` with its scheme in lower case.
fn with_plain_scheme(url: &str) -> String {
    let (scheme, rest) = url.split_at(url.find(':').unwrap_or(0));
    scheme.to_ascii_lowercase() + rest
}

/// Where something like a URL begins in `text`: a scheme, a colon and slashes. With fewer than two
/// slashes it may be a path, unless archfs reads the scheme, or a password or a signature follows.
fn start_of_url(text: &str) -> Option<usize> {
    let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    text.match_indices(':').find_map(|(colon, _)| {
        let (before, after) = (&text[..colon], &text[colon + 1..]);
        let start = before.trim_end_matches(is_of_scheme).len();
        // An option may stand before it without a space.
        let scheme = before[start..].trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        let rest = after.trim_start_matches(['/', '\\']);
        let user = rest.split(['/', '?', '#']).next().and_then(|it| it.rsplit_once('@'));
        let has_secret = user.is_some_and(|it| it.0.contains(':')) || is_signed(rest);
        let is_found = match after.len() - rest.len() {
            0 => is_read(scheme.as_bytes()),
            1 => is_read(scheme.as_bytes()) || has_secret,
            _ => true,
        };
        (is_found && !scheme.is_empty()).then_some(colon - scheme.len())
    })
}

/// `url`, or what looks like one, without user, password, query and fragment. A key in S3 may have
/// a question mark, so it loses only a query that is signed. Once more gives the same.
fn shown(url: &str) -> String {
    shown_to_depth(url, DEPTH_MAX)
}

/// The same, with all hidden behind `depth` more of such words in its path.
fn shown_to_depth(url: &str, depth: usize) -> String {
    let (scheme, rest) = url.split_at(url.find(':').map_or(0, |colon| colon + 1));
    let (slashes, rest) = rest.split_at(rest.len() - rest.trim_start_matches(['/', '\\']).len());
    let end = match scheme.eq_ignore_ascii_case("s3:") {
        true => rest.match_indices('?').map(|(at, _)| at).find(|&at| is_signed(&rest[at..])),
        false => rest.find(['?', '#']),
    };
    let (rest, query) = rest.split_at(end.unwrap_or(rest.len()));
    let query = match query.strip_prefix('?').map(|query| query.strip_prefix(HIDDEN)) {
        Some(Some(number)) if is_number(number) => query.to_owned(),
        Some(_) => format!("?{HIDDEN}"),
        None => String::new(),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '\\']).unwrap_or(rest.len()));
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let port = host.rsplit(']').next().and_then(|host| host.split_once(':'));
    let has_odd_port = port.is_some_and(|(_, port)| !is_number(port));
    // The host may be behind a password with a slash.
    let may_have_password = !user.is_empty() || port.is_some();
    let rest = match path.rsplit_once('@') {
        _ if user == HIDDEN => format!("{authority}{path}{query}"),
        Some((_, end)) if may_have_password => format!("{HIDDEN}@{end}{query}"),
        _ if has_odd_port => HIDDEN.to_owned(),
        _ => match start_of_url(path) {
            Some(at) => {
                let (before, more) = path.split_at(at);
                let more = match depth.checked_sub(1) {
                    Some(depth) => shown_to_depth(more, depth),
                    None => HIDDEN.to_owned(),
                };
                format!("{host}{before}{more}{query}")
            }
            None => format!("{host}{path}{query}"),
        },
    };
    format!("{scheme}{slashes}{rest}")
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `text`, a line for people, without the secrets of what looks like a URL in it.
pub fn shown_in(text: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || "\"'`<>".contains(c);
    let mut found = String::new();
    for piece in text.split_inclusive(is_end) {
        let word = piece.trim_end_matches(|c| is_end(c) || ":,;)".contains(c));
        let (start, end) = (start_of_url(word), &piece[word.len()..]);
        let query = word.find('?').filter(|&at| is_signed(&word[at..]));
        match (start, query) {
            (Some(start), query) if query.is_none_or(|query| start < query) => {
                found.extend([&word[..start], &shown(&word[start..]), end]);
            }
            (_, Some(query)) => found.extend([&word[..query], "?", HIDDEN, end]),
            _ => found.push_str(piece),
        }
    }
    found
}

/// Whether a query has a parameter that makes it a secret.
fn is_signed(query: &str) -> bool {
    query.split(['?', '&']).filter_map(|part| part.split_once('=')).any(|(name, _)| {
        let name = name.to_ascii_lowercase();
        SIGNATURES.iter().flat_map(|it| it.secret).chain(&TOKENS).any(|secret| name == *secret)
            || SECRET_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    })
}

/// `url` without password, signature and fragment.
pub fn without_signature(url: &str) -> String {
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
    let mut signs = Vec::new();
    for Signature { secret, marks, others } in &SIGNATURES {
        if secret.iter().chain(*marks).all(is_there) {
            signs.extend([*secret, *marks, *others].concat());
        }
    }
    let parameters = query.split('&').zip(&keys);
    let kept = parameters.filter(|(_, key)| !signs.contains(&key.as_str()));
    let kept: Vec<_> = kept.map(|(parameter, _)| parameter).collect();
    format!("{scheme}://{user}@{host}{path}?{}", kept.join("&"))
}

/// Replaces `argument` by `name`, or as much of it as there is room for, in the command line that
/// ps(1) shows.
fn hide(argument: &[u8], name: &[u8]) {
    // The kernel reads the command line from the memory of the process: proc_pid_cmdline(5). Its
    // position is in fields 48 and 49 of proc_pid_stat(5). The second field is in parentheses and
    // may have any character.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let Some((start, end)) = field(48).zip(field(49)) else { return };
    let Ok(memory) = OpenOptions::new().read(true).write(true).open("/proc/self/mem") else {
        return;
    };
    let mut line = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
    if memory.read_exact_at(&mut line, start).is_err() {
        return;
    }
    let mut at = 0;
    for word in line.split(|byte| *byte == 0) {
        if word == argument {
            // The word ends where the name ends.
            let mut hidden = name.to_owned();
            hidden.resize(argument.len(), 0);
            // Nothing else can be done about it.
            let _ = memory.write_all_at(&hidden, start + at);
        }
        at += word.len() as u64 + 1;
    }
}

/// `path`, a URL or the name of one, as text.
pub fn text(path: &Path) -> String {
    String::from_utf8_lossy(OsStr::as_bytes(path.as_os_str())).into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn the_file_name_of_a_url_has_no_query() {
        for (path, expected) in [
            ("https://host/data.csv.gz?...", "data.csv.gz"),
            ("https://host/data.csv.gz?...2", "data.csv.gz"),
            ("s3://bucket/what?.gz", "what?.gz"),
            ("directory/data?...gz", "data?...gz"),
        ] {
            assert_eq!(file_name(Path::new(path)), Some(expected.as_bytes()));
        }
    }

    #[test]
    fn a_name_has_no_secret_and_leads_to_its_url() {
        for (url, expected) in [
            ("https://host/a.sqfs", "https://host/a.sqfs"),
            ("HTTPS://Host/A", "https://Host/A"),
            ("https://host:81/a.tar#part", "https://host:81/a.tar"),
            ("https://me:pass@host/a.tar", "https://host/a.tar"),
            ("hTTps://me:pass@case/a.tar", "https://case/a.tar"),
            ("https://me:p@ss@other/a.tar", "https://other/a.tar"),
            ("https://host/a.tar?X-Amz-Signature=1@/", "https://host/a.tar?..."),
            ("https://host/a.tar?X-Amz-Signature=2", "https://host/a.tar?...2"),
            ("https://host/a.tar?...&sig=3", "https://host/a.tar?...3"),
            ("https://host?key=1", "https://host?..."),
            ("https://me:p/ss@host/a", "https://...@host/a"),
            ("https://me:1/ss@host/b", "https://...@host/b"),
            ("https://me:p#ss@host/a", "https://..."),
            ("https://host/d@1/a", "https://host/d@1/a"),
            ("https://[::1]:9000/a", "https://[::1]:9000/a"),
            ("s3://bucket/a?b#c@d", "s3://bucket/a?b#c@d"),
            ("s3://bucket/a//b/../c%2F+ d", "s3://bucket/a//b/../c%2F+ d"),
            ("S3://KEY:se/c+ret@bucket/a", "s3://...@bucket/a"),
            ("s3://KEY:secret@bucket/b@c", "s3://...@c"),
            ("s3://KEY:secret@bucket/a", "s3://bucket/a"),
            ("s3://bucket/a?X-Amz-Security-Token=1", "s3://bucket/a?..."),
        ] {
            for _ in 0..2 {
                let name = name_of(url);
                assert_eq!(name, expected);
                assert_eq!(of_name(&name), with_plain_scheme(url));
                assert_eq!(name_of(&name), name, "a name is its own name");
                assert_eq!(shown(&name), name);
            }
        }
        let (variable, text) = environment().unwrap();
        assert_eq!(variable, VARIABLE);
        let urls: BTreeMap<String, String> = serde_json::from_str(text.to_str().unwrap()).unwrap();
        assert_eq!(urls["https://host/a.tar?...2"], "https://host/a.tar?X-Amz-Signature=2");
    }

    /// What people type by mistake, and what programs put before and after it.
    #[test]
    fn nothing_that_looks_like_a_url_shows_a_secret() {
        let schemes =
            ["https://", "HTTPS://", "htps://", "https:/", "https:", "https:///", "s3://"];
        let more = ["ftp://", "a+b://", "x://y/https://", "https:\\\\"];
        let users =
            ["me:SECRET@", "SECRET:SECRET@", "me:SE/SECRET@", "me:1/SECRET@", "me:@SECRET@"];
        let queries = [
            "X-Amz-Credential=SECRET&X-Amz-Signature=SECRET",
            "x-goog-signature=SECRET",
            "sv=1&sig=SECRET",
            "Expires=1&Signature=SECRET&Key-Pair-Id=SECRET",
            "token=SECRET",
        ];
        for scheme in schemes.into_iter().chain(more) {
            let with_user = users.map(|user| format!("{scheme}{user}host/a.tar"));
            let with_query = queries.map(|query| format!("{scheme}host/a.tar?{query}"));
            for url in with_user.into_iter().chain(with_query) {
                for word in [url.clone(), format!("--stage={url}"), format!("-osubdir={url},x=y")] {
                    let words = named(vec![word.clone().into()], false);
                    let name = words[0].to_str().unwrap();
                    assert!(!name.contains("SECRET"), "{word}: {name}");
                    assert!(name.contains(":") && !name.is_empty(), "{word}: {name}");
                    let twice = named(words.clone(), false);
                    assert_eq!(twice, words);
                    for line in
                        [format!("{word}: no such file"), format!("\"{word}\" and `{word}`")]
                    {
                        let shown = shown_in(&line);
                        assert!(!shown.contains("SECRET"), "{line}: {shown}");
                        assert_eq!(shown_in(&shown), shown);
                    }
                }
            }
        }
        for (line, expected) in [
            ("a.tar?X-Amz-Signature=SECRET: no", "a.tar?...: no"),
            ("/d/htps:/me:SECRET@host/a: no", "/d/htps:/host/a: no"),
            ("htps:/host/a?token=SECRET", "htps:/host/a?..."),
            ("a.tar?to=https://host/&sig=SECRET", "a.tar?..."),
        ] {
            assert_eq!(shown_in(line), expected);
        }
        let line = "https://h:81: x (https://h/a?...2); http://[::1]/a: b";
        assert_eq!(shown_in(line), line);
    }

    #[test]
    fn a_path_of_urls_has_only_its_first_ones_shown() {
        let line = shown_in(&format!("{}a?token=SECRET: no", "http:/".repeat(100_000)));
        assert_eq!(line, format!("{}...?...: no", "http:/".repeat(18)));
        assert_eq!(shown_in(&line), line);
    }

    #[test]
    fn words_after_the_separator_are_not_urls_of_archives() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let given = ["archfs", "run", "http://u:p@h/a", "--", "cmd", "http://u:p@h/b"];
        let all = words(&["archfs", "run", "http://h/a", "--", "cmd", "http://h/b"]);
        let before = words(&["archfs", "run", "http://h/a", "--", "cmd", "http://u:p@h/b"]);
        assert_eq!(named(words(&given), false), all);
        assert_eq!(named(words(&given), true), before);
    }

    #[test]
    fn words_without_a_secret_stay_as_they_are() {
        for word in [
            "/data/a.sqfs",
            "dir/a@1:2/b?c",
            "user@host:path",
            "a:b@c",
            "--cache=1g",
            "-osubdir=a/b:c",
            "http://h/a",
            "http://h/a%20b/../c//d",
            "at12:30",
            "\u{fc}:/x",
        ] {
            assert_eq!(named(vec![word.into()], false), [word]);
            assert_eq!(shown_in(word), word);
        }
        let bytes = OsString::from_vec(b"http://\xff".to_vec());
        assert_eq!(named(vec![bytes.clone()], false)[0].to_string_lossy(), bytes.to_string_lossy());
        let secret = OsString::from_vec(b"http://u:p@h/\xff".to_vec());
        assert_eq!(named(vec![secret], false), ["http://h/\u{fffd}"]);
    }

    #[test]
    fn paths_are_no_urls() {
        for path in ["https:/host/a", "a/https://b", "ftp://host/a", "", "http:", "data.sqfs"] {
            assert!(!is_url(Path::new(path)), "{path}");
        }
    }

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
}
