//! The JSON of `archfs info`. Scripts rely on its keys, which are named after the fields of
//! `formats::info`.
//!
//! Invariant: sizes are bytes, and counts are whole numbers. A key that does not apply to a format
//! is missing. A value that is merely absent is `null`.

use serde::Serialize;

use super::advice;
use super::top::Top;
use crate::cli::term;
use crate::error::Result;
use crate::formats::{
    Compressed, Cost, Image, ImageEstimate, Info, Kinds, Layout, TarLayout, ZipLayout,
};

/// One object on one line for the archive at the path `archive`.
pub(super) fn object(archive: &str, info: &Info, top: Option<Top>) -> Result<String> {
    let advice = Some(advice::sentences(archive, info));
    let row = Row { archive: Some(archive), advice, top, ..Row::of(info) };
    Ok(term::json_line(&row)? + "\n")
}

#[derive(Serialize)]
struct Row<'i> {
    /// Only in the outermost object.
    #[serde(skip_serializing_if = "Option::is_none")]
    archive: Option<&'i str>,
    /// The directory that shows an inner archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The path in hexadecimal digits if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    format: &'static str,
    bytes: u64,
    #[serde(flatten)]
    kinds: Kinds,
    file_bytes: u64,
    file_mean: u64,
    file_largest: u64,
    /// Only classes of size that have files.
    sizes: Vec<SizeRow>,
    decoded: Cost,
    packed: ImageEstimate,
    #[serde(skip_serializing_if = "Option::is_none")]
    squashfs: Option<&'i Image>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tar: Option<TarRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zip: Option<&'i ZipLayout>,
    within: Vec<Row<'i>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<Vec<String>>,
    /// Only with `--top`.
    #[serde(flatten)]
    top: Option<Top>,
}

/// Files smaller than a power of two, and not smaller than half of it.
#[derive(Serialize)]
struct SizeRow {
    below: Option<u64>,
    files: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct TarRow {
    container: Option<&'static str>,
    bytes: u64,
    /// `null` if the tar is not compressed, or can only be decoded as a whole.
    chunks: Option<usize>,
    largest_chunk: Option<u64>,
    /// Whether opening it decodes it to a temporary file.
    spooled: bool,
    holes: u64,
    xattrs: bool,
    indexed: bool,
}

impl<'i> Row<'i> {
    fn of(info: &'i Info) -> Self {
        let path = (!info.path.is_empty()).then_some(&info.path);
        let (format, squashfs, tar, zip) = match &info.layout {
            Layout::Image(image) => ("squashfs", Some(image), None, None),
            Layout::Tar(stored) => {
                let format = if stored.is_lone_file { "file" } else { "tar" };
                (format, None, Some(TarRow::of(stored)), None)
            }
            Layout::Zip(zip) => ("zip", None, None, Some(zip)),
        };
        let sizes = info.sizes.classes().filter(|&(_, files, _)| files > 0);
        Self {
            archive: None,
            path: path.map(|path| String::from_utf8_lossy(path).into_owned()),
            path_hex: path.and_then(|path| term::hex_if_not_utf8(path)),
            format,
            bytes: info.bytes,
            kinds: info.kinds,
            file_bytes: info.sizes.bytes(),
            file_mean: info.sizes.mean(),
            file_largest: info.sizes.largest(),
            sizes: sizes.map(SizeRow::of).collect(),
            decoded: info.cost,
            packed: info.packed,
            squashfs,
            tar,
            zip,
            within: info.within.iter().map(Row::of).collect(),
            advice: None,
            top: None,
        }
    }
}

impl SizeRow {
    fn of((digits, files, bytes): (u32, u64, u64)) -> Self {
        Self { below: 1_u64.checked_shl(digits), files, bytes }
    }
}

impl TarRow {
    fn of(stored: &TarLayout) -> Self {
        let TarLayout { bytes, compressed, holes, has_xattrs, is_indexed, .. } = *stored;
        let chunks = compressed.and_then(|compressed| compressed.chunks);
        Self {
            container: compressed.map(|Compressed { container, .. }| container),
            bytes,
            chunks,
            largest_chunk: compressed.filter(|_| chunks.is_some()).map(|c| c.largest),
            spooled: compressed.is_some_and(|compressed| compressed.chunks.is_none()),
            holes,
            xattrs: has_xattrs,
            indexed: is_indexed,
        }
    }
}
