//! Archives that are named by URLs, and the secrets in those.
//!
//! A URL may have a password or the signature of a presigned request. So archfs shows, records and
//! passes on only the *name* of a URL, which lacks user, password and query. The URLs themselves
//! are here and in the environment of the archfs processes that this one starts, which only their
//! user can read.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::sync::{Mutex, OnceLock};

/// Schemes of URLs that archfs reads.
const SCHEMES: [&str; 3] = ["https://", "http://", "s3://"];

/// What a name has in place of the query.
const QUERY: &str = "?...";

/// The environment variable with the URLs of names that lack a part of them: lines, in turn a name
/// and its URL.
const VARIABLE: &str = "ARCHFS_URLS";

/// URLs by name. Held for a lookup or an insertion.
static URLS: OnceLock<Mutex<BTreeMap<String, String>>> = OnceLock::new();

/// Whether `path` is a URL, or the name of one.
pub fn is_url(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    SCHEMES.iter().any(|scheme| bytes.starts_with(scheme.as_bytes()))
}

/// The URL with this name, which is a URL itself if that has nothing to hide.
pub fn of_name(name: &str) -> String {
    urls().lock().get(name).cloned().unwrap_or_else(|| name.to_owned())
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

/// `arguments` with names in place of URLs. Those after the first `--` stay as they are if
/// `before_separator`. If a URL has a secret, it is also removed from what other users see as the
/// command line of this process.
pub fn named(arguments: Vec<OsString>, before_separator: bool) -> Vec<OsString> {
    let end = match before_separator {
        true => arguments.iter().position(|word| word == "--").unwrap_or(arguments.len()),
        false => arguments.len(),
    };
    let name = |(nth, word): (usize, OsString)| {
        let text = word.to_str().filter(|text| nth < end && is_url(Path::new(text)));
        let Some(url) = text else { return word };
        let name = name_of(url);
        if name != url {
            hide(url.as_bytes(), name.as_bytes());
        }
        name.into()
    };
    arguments.into_iter().enumerate().map(name).collect()
}

/// What an archfs that this process starts needs in its environment.
pub fn environment() -> Option<(&'static str, OsString)> {
    let urls = urls().lock();
    let lines: Vec<_> = urls.iter().flat_map(|(name, url)| [name.as_str(), url]).collect();
    (!lines.is_empty()).then(|| (VARIABLE, lines.join("\n").into()))
}

fn urls() -> &'static Mutex<BTreeMap<String, String>> {
    URLS.get_or_init(|| {
        let inherited = std::env::var(VARIABLE).unwrap_or_default();
        let lines: Vec<&str> = inherited.lines().collect();
        let pairs = lines.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned()));
        Mutex::new(pairs.collect())
    })
}

/// The name of `url`, by which `of_name` finds it again.
fn name_of(url: &str) -> String {
    let mut urls = urls().lock();
    if urls.contains_key(url) {
        return url.to_owned();
    }
    let first = without_secrets(url);
    if first == url {
        return first;
    }
    // URLs that differ only in their secrets are different archives.
    let numbered = (2..).map(|number| format!("{first}{number}"));
    let names = std::iter::once(first.clone()).chain(numbered);
    let free = |name: &String| urls.get(name).is_none_or(|found| found == url);
    let name = names.into_iter().find(free).unwrap_or(first);
    urls.insert(name.clone(), url.to_owned());
    name
}

/// `url` without user, password, query and fragment. An object in S3 has none of them.
fn without_secrets(url: &str) -> String {
    if url.starts_with("s3://") {
        return url.to_owned();
    }
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let rest = rest.split('#').next().unwrap_or_default();
    let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, _)| (rest, QUERY));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    // Part of a password, if that has a character that it must not have. The URL is not valid.
    let port = host.rsplit(']').next().and_then(|host| host.split_once(':'));
    if port.is_some_and(|(_, port)| !port.bytes().all(|byte| byte.is_ascii_digit())) {
        return format!("{scheme}://...");
    }
    format!("{scheme}://{host}{path}{query}")
}

/// Replaces `argument` by `name` in the command line that ps(1) shows. Has no effect if the name is
/// longer: so short a query is no secret.
fn hide(argument: &[u8], name: &[u8]) {
    if name.len() > argument.len() {
        return;
    }
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
    fn a_name_has_no_secret_and_leads_to_its_url() {
        for (url, expected) in [
            ("https://host/a.sqfs", "https://host/a.sqfs"),
            ("https://host:81/a.tar#part", "https://host:81/a.tar"),
            ("https://me:pass@host/a.tar", "https://host/a.tar"),
            ("https://me:p@ss@other/a.tar", "https://other/a.tar"),
            ("https://host/a.tar?X-Amz-Signature=1@/", "https://host/a.tar?..."),
            ("https://host/a.tar?X-Amz-Signature=2", "https://host/a.tar?...2"),
            ("https://host?key=1", "https://host?..."),
            ("https://me:p/ss@host/a", "https://..."),
            ("https://me:p#ss@host/a", "https://...2"),
            ("https://[::1]:9000/a", "https://[::1]:9000/a"),
            ("s3://bucket/a?b#c@d", "s3://bucket/a?b#c@d"),
        ] {
            for _ in 0..2 {
                let name = name_of(url);
                assert_eq!(name, expected);
                assert_eq!(of_name(&name), url);
                assert_eq!(name_of(&name), name, "a name is its own name");
            }
        }
        let (variable, text) = environment().unwrap();
        assert_eq!(variable, VARIABLE);
        let text = text.into_string().unwrap();
        assert!(text.contains("https://host/a.tar?...2\nhttps://host/a.tar?X-Amz-Signature=2"));
    }

    #[test]
    fn words_after_the_separator_are_not_urls_of_archives() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let given = ["archfs", "run", "http://u:p@h/a", "--", "cmd", "http://u:p@h/b"];
        let all = words(&["archfs", "run", "http://h/a", "--", "cmd", "http://h/b"]);
        let before = words(&["archfs", "run", "http://h/a", "--", "cmd", "http://u:p@h/b"]);
        assert_eq!(named(words(&given), false), all);
        assert_eq!(named(words(&given), true), before);
        let bytes = OsString::from_vec(b"http://\xff".to_vec());
        assert_eq!(named(vec![bytes.clone()], false), [bytes]);
    }

    #[test]
    fn paths_are_no_urls() {
        for path in ["https:/host/a", "a/https://b", "ftp://host/a", "", "http:", "data.sqfs"] {
            assert!(!is_url(Path::new(path)), "{path}");
        }
    }
}
