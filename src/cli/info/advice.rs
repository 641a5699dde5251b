//! What could be done so that files of an archive are read faster.
//!
//! Owns the rules; leaves the numbers to `formats::info`, where those of packing anew are an
//! estimate, and called so here.
//! Invariant: there is always something said, if only that there is nothing to gain.

use crate::formats::{Compressed, Image, Info, Layout, TarLayout};
use crate::units::show_size;

/// Advice is given where reading would decode less than this part of what it does: 2 of 3.
const GAIN: (u64, u64) = (2, 3);

/// Compressors that take longer to decode than zstd does.
const SLOW: [&str; 4] = ["gzip", "xz", "lzma", "bzip2"];

/// Names from which on reading all headers of a tar takes a while.
const MANY: u64 = 1000;

/// What to do with the archive at the path `archive`, a sentence each.
pub(super) fn sentences(archive: &str, info: &Info) -> Vec<String> {
    let mut said = Vec::new();
    if let Layout::Tar(TarLayout {
        compressed: Some(Compressed { chunks: None, .. }), bytes, ..
    }) = &info.layout
    {
        said.push(format!(
            "it can only be decoded as a whole: each mount writes {} to a temporary file first; \
             `archfs pack {} new.sqfs` makes an image that is read at once",
            show_size(*bytes),
            quoted(archive)
        ));
        return said;
    }
    said.extend(gain(archive, info));
    said.extend(compressor(info));
    if let Layout::Tar(TarLayout { is_indexed: false, .. }) = info.layout
        && info.kinds.files >= MANY
    {
        said.push(format!(
            "`archfs index {}` saves its index, so that a mount need not read all headers",
            quoted(archive)
        ));
    }
    if said.is_empty() {
        said.push("nothing to gain by packing it anew".to_owned());
    }
    said
}

/// What smaller blocks would gain.
fn gain(archive: &str, info: &Info) -> Option<String> {
    let (now, then) = (info.cost.mean, info.packed.mean);
    if info.sizes.bytes() == 0 {
        return None;
    }
    if info.cost.worst == 0 {
        return Some("nothing to gain: what is read is what is stored, not decoded".to_owned());
    }
    let (part, whole) = GAIN;
    if then.saturating_mul(whole) > now.saturating_mul(part) {
        return None;
    }
    Some(format!(
        "a random read of a mean file of {} decodes {}: `archfs pack {} new.sqfs` would \
         decode about {} (an estimate)",
        show_size(info.sizes.mean()),
        show_size(now),
        quoted(archive),
        show_size(then)
    ))
}

/// What another compressor would gain.
fn compressor(info: &Info) -> Option<String> {
    let name = match &info.layout {
        Layout::Image(Image { compressor, shares, .. }) if shares.compressed > 0 => compressor,
        Layout::Tar(TarLayout { compressed: Some(Compressed { container, .. }), .. }) => container,
        _ => return None,
    };
    SLOW.contains(name)
        .then(|| format!("zstd decodes faster than {name}, and is what `archfs pack` uses"))
}

/// A path as a shell takes it.
fn quoted(path: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/+,:=@".contains(c);
    let is_option = path.starts_with('-');
    match !path.is_empty() && !is_option && path.chars().all(is_plain) {
        true => path.to_owned(),
        false if is_option => format!("'./{}'", path.replace('\'', "'\\''")),
        false => format!("'{}'", path.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_what_they_are_for_a_shell() {
        for (path, text) in [
            ("/a/data-1.sqfs", "/a/data-1.sqfs"),
            ("my data", "'my data'"),
            ("it's", "'it'\\''s'"),
            ("-x", "'./-x'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(path), text);
        }
    }
}
