//! Advice on how to make reads of an archive faster.
//!
//! Invariant: an archive of files with contents always gets a sentence, if only that there is
//! nothing to gain. Estimates are called so.

use std::path::Path;

use crate::formats::{Compressed, Image, Info, Layout, TarLayout};
use crate::os::lustre;
use crate::units::{format_size, quoted};

/// Advise packing again if reads would then decompress at most this part: 2 of 3.
const GAIN: (u64, u64) = (2, 3);

/// Compressors that decompress more slowly than zstd.
const SLOW: [&str; 5] = ["gzip", "deflate", "xz", "lzma", "bzip2"];

/// Number of files from which reading all headers of a tar takes noticeable time.
const MANY: u64 = 1000;

/// Size from which an archive on a single Lustre server calls for advice, bytes.
const STRIPED_FROM: u64 = 1 << 30;

/// Advice for the archive at the path `archive`, one sentence each.
pub(super) fn sentences(archive: &str, info: &Info) -> Vec<String> {
    if crate::log::has_losses() {
        let archive = quoted(archive);
        return vec![format!(
            "copy the archive again; `archfs verify {archive}` reports all damage"
        )];
    }
    let mut advice = Vec::new();
    if let Layout::Tar(TarLayout {
        compressed: Some(Compressed { chunks: None, .. }), bytes, ..
    }) = &info.layout
    {
        advice.push(format!(
            "each mount decompresses {} to a temporary file first; `archfs pack {} new.sqfs` makes \
             an image that needs none",
            format_size(*bytes),
            quoted(archive)
        ));
        return advice;
    }
    let gains: Vec<_> = gain(archive, info).into_iter().chain(compressor(info)).collect();
    let is_worth_packing = info.cost.worst > 0 && !gains.is_empty();
    advice.extend(gains);
    if info.is_environment && is_worth_packing {
        let archive = quoted(archive);
        advice.push(format!(
            "it holds a Python environment, which starts as fast from an image of `archfs pack \
             --fast {archive} new.sqfs`, packed in a fraction of the time"
        ));
    }
    if let Layout::Tar(TarLayout { is_indexed: false, .. }) = info.layout
        && info.kinds.files >= MANY
    {
        advice.push(format!(
            "`archfs index {}` saves the index; without it, a mount reads all headers",
            quoted(archive)
        ));
    }
    if info.bytes >= STRIPED_FROM && lustre::stripe_count(Path::new(archive)) == Some(1) {
        advice.push(format!(
            "it is on one storage server (stripe count 1), which all nodes share; `lfs migrate -c \
             16 {}` spreads it over 16",
            quoted(archive)
        ));
    }
    if advice.is_empty() && info.sizes.bytes() > 0 {
        advice.push("use it as it is: packing it again gains nothing".to_owned());
    }
    advice
}

/// The gain of smaller blocks.
fn gain(archive: &str, info: &Info) -> Option<String> {
    let (current, repacked) = (info.cost.mean, info.packed.mean);
    if info.sizes.bytes() == 0 {
        return None;
    }
    if info.cost.worst == 0 {
        return Some("use it as it is: reads decompress nothing".to_owned());
    }
    let (part, whole) = GAIN;
    if repacked.saturating_mul(whole) > current.saturating_mul(part) {
        return None;
    }
    Some(format!(
        "`archfs pack {} new.sqfs` would decompress {} instead of {} for a mean file (estimate)",
        quoted(archive),
        format_size(repacked),
        format_size(current)
    ))
}

/// The gain of another compressor.
fn compressor(info: &Info) -> Option<String> {
    let name = match &info.layout {
        Layout::Image(Image { compressor, shares, .. }) if shares.compressed > 0 => compressor,
        Layout::Tar(TarLayout { compressed: Some(Compressed { container, .. }), .. }) => container,
        Layout::Zip(zip) => {
            let compressed = zip.methods.iter().filter(|share| share.method != "stored");
            &compressed.max_by_key(|share| share.bytes)?.method
        }
        _ => return None,
    };
    SLOW.contains(name)
        .then(|| format!("`archfs pack` uses zstd, which decompresses faster than {name}"))
}
