//! The text output of `archfs info`.
//!
//! Invariants: no line is wider than the terminal, unless a single word is. At 80 columns there are
//! at most 30 lines.

use super::advice;
use crate::cli::term::{bar, columns};
use crate::formats::{Image, Info, Layout, MethodShare, Shares, TarLayout, ZipLayout};
use crate::log::printable;
use crate::units::{counted, counted_directories, format_size};

/// Columns of the labels.
const LABEL: usize = 13;

/// Columns of the table of sizes before its bars.
const TABLE: usize = 37;

/// Limits of the width.
const WIDTHS: std::ops::RangeInclusive<usize> = 40..=100;

/// Binary digits of the sizes in a row of the table: one row for sizes below 1 KiB, then one for
/// each factor of four.
const FIRST_ROW: u32 = 10;
const ROW: u32 = 2;

/// The last row has all larger files, from 1 GiB on.
const LAST_ROW: u32 = 31;

/// The width of the output.
pub(super) fn width() -> usize {
    columns().clamp(*WIDTHS.start(), *WIDTHS.end())
}

/// The lines for the archive at the path `archive`.
pub(super) fn lines(archive: &str, info: &Info, width: usize) -> String {
    let mut screen = Screen { text: String::new(), width };
    screen.add_labeled("archive", archive);
    match &info.layout {
        Layout::Image(image) => screen.image(info, image),
        Layout::Tar(stored) => screen.tar(info, stored),
        Layout::Zip(zip) => screen.zip(info, zip),
    }
    screen.within(info);
    screen.cost(info);
    if info.sizes.bytes() > 0 {
        screen.text.push('\n');
        screen.sizes(info);
    }
    for (nth, sentence) in advice::sentences(archive, info).iter().enumerate() {
        if nth == 0 {
            screen.text.push('\n');
        }
        screen.add_labeled(if nth == 0 { "advice" } else { "" }, sentence);
    }
    screen.text
}

struct Screen {
    text: String,
    width: usize,
}

impl Screen {
    /// Adds a labeled text, wrapped to the width.
    fn add_labeled(&mut self, label: &str, what: &str) {
        let mut line = format!("{label:LABEL$}");
        let mut is_empty = true;
        for word in printable(what).split(' ') {
            let columns = line.chars().count() + word.chars().count() + 1;
            if !is_empty && columns > self.width {
                self.text.push_str(line.trim_end());
                self.text.push('\n');
                line = " ".repeat(LABEL);
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn image(&mut self, info: &Info, image: &Image) {
        let options = image.options.as_ref().map_or(String::new(), |text| format!(" ({text})"));
        let block = format_size(image.block_size.into());
        let Image { compressor, .. } = image;
        self.add_labeled("format", &format!("SquashFS 4.0, {compressor}{options}, {block} blocks"));
        self.counts(info, image.bytes);
        let Shares { uncompressed, compressed, holes, shared } = image.shares;
        let part = |part| percent(part, info.sizes.bytes());
        let mut stored =
            format!("{} compressed, {} uncompressed", part(compressed), part(uncompressed));
        if holes > 0 {
            stored.push_str(&format!(", {} holes", part(holes)));
        }
        if shared > 0 {
            stored.push_str(&format!("; {} shared by several files", part(shared)));
        }
        self.add_labeled("stored", &stored);
        let found = image.fragments;
        let mut fragments = "none".to_owned();
        if found.used > 0 {
            let room = found.used.saturating_mul(image.block_size.into());
            let (full, ends) = (percent(found.bytes, room), found.files / found.used);
            fragments = format!(
                "{}, {full} full, {} each",
                count(found.used, "block"),
                count(ends, "file")
            );
        }
        let unused = u64::from(image.fragments.blocks).saturating_sub(found.used);
        if unused > 0 {
            fragments.push_str(&format!("; {unused} unused"));
        }
        self.add_labeled("fragments", &fragments);
        let xattrs = match image.xattrs {
            None | Some(0) => "no xattrs".to_owned(),
            Some(sets) => count(sets, "set") + " of xattrs",
        };
        let export = if image.is_exportable { "export table" } else { "no export table" };
        let (tables, owners) = (format_size(image.tables), count(image.owners, "owner"));
        self.add_labeled("tables", &format!("{tables}; {xattrs}, {export}, {owners}"));
    }

    fn tar(&mut self, info: &Info, stored: &TarLayout) {
        let decoded = format_size(stored.bytes);
        self.add_labeled(
            "format",
            &match stored.compressed {
                None => "tar".to_owned(),
                Some(found) => {
                    let what = if stored.is_lone_file { "one file" } else { "tar" };
                    format!("{what} in {}, {decoded} decompressed", found.container)
                }
            },
        );
        self.counts(info, info.bytes);
        if let Some(found) = stored.compressed {
            self.add_labeled(
                "chunks",
                &match found.chunks {
                    None => "none: the whole archive is decompressed".to_owned(),
                    Some(1) => "1: a read decompresses the whole archive".to_owned(),
                    Some(count) => format!(
                        "{count}, mean {}, largest {}",
                        format_size(stored.bytes / u64::try_from(count.max(1)).unwrap_or(1)),
                        format_size(found.largest)
                    ),
                },
            );
        }
        let index = if stored.is_indexed { "saved" } else { "not saved" };
        let xattrs = if stored.has_xattrs { "xattrs" } else { "no xattrs" };
        let mut tables = format!("index {index}; {xattrs}");
        if stored.holes > 0 {
            tables.push_str(&format!("; {} of holes", format_size(stored.holes)));
        }
        self.add_labeled("tables", &tables);
    }

    fn zip(&mut self, info: &Info, zip: &ZipLayout) {
        self.add_labeled("format", "ZIP");
        self.counts(info, info.bytes);
        let bytes = zip.methods.iter().map(|share| share.bytes).fold(0, u64::saturating_add);
        let shares = zip.methods.iter().map(|share| {
            let MethodShare { method, files, compressed, bytes: part } = *share;
            let (part, files) = (percent(part, bytes), count(files, "file"));
            let size = match method {
                "stored" => String::new(),
                _ => format!(", compressed to {}", percent(compressed, share.bytes)),
            };
            format!("{part} {method} ({files}{size})")
        });
        let shares: Vec<_> = shares.collect();
        if !shares.is_empty() {
            self.add_labeled("stored", &shares.join(", "));
        }
    }

    /// Adds the lines that all archives have.
    fn counts(&mut self, info: &Info, stored: u64) {
        let (bytes, kinds) = (info.sizes.bytes(), info.kinds);
        let (size, files) = (format_size(stored), format_size(bytes));
        let part =
            if bytes == 0 { String::new() } else { format!(" ({})", percent(stored, bytes)) };
        self.add_labeled("size", &format!("{size} for {files} of files{part}"));
        let directories = counted_directories(kinds.directories);
        let mut names = format!("{}, {directories}", count(kinds.files, "file"));
        for (number, what) in [
            (kinds.links, "symbolic link"),
            (kinds.devices, "device"),
            (kinds.fifos, "FIFO"),
            (kinds.sockets, "socket"),
        ] {
            if number > 0 {
                names.push_str(&format!(", {}", count(number, what)));
            }
        }
        if kinds.hard_links > 0 {
            names.push_str(&format!("; {}", count(kinds.hard_links, "hard link")));
        }
        self.add_labeled("names", &names);
    }

    fn within(&mut self, info: &Info) {
        if info.within.is_empty() {
            return;
        }
        let (mut images, mut tars, mut zips) = (0_u64, 0_u64, 0_u64);
        let (mut files, mut bytes) = (0_u64, 0_u64);
        for inner in &info.within {
            match inner.layout {
                Layout::Image(_) => images += 1,
                Layout::Tar(_) => tars += 1,
                Layout::Zip(_) => zips += 1,
            }
            files = files.saturating_add(inner.kinds.files);
            bytes = bytes.saturating_add(inner.sizes.bytes());
        }
        let kinds = [(images, "SquashFS"), (tars, "tar"), (zips, "ZIP")];
        let kinds = kinds.into_iter().filter(|&(number, _)| number > 0);
        let kinds: Vec<_> = kinds.map(|(number, name)| format!("{number} {name}")).collect();
        let (all, kinds) = (count(images + tars + zips, "archive"), kinds.join(", "));
        let files = count(files, "file");
        let what = format!("{all} ({kinds}): {files}, {}", format_size(bytes));
        self.add_labeled("within", &what);
    }

    fn cost(&mut self, info: &Info) {
        let sizes = &info.sizes;
        let (mean, largest) = (format_size(sizes.mean()), format_size(sizes.largest()));
        self.add_labeled("file size", &format!("mean {mean}, largest {largest}"));
        let cost = info.cost;
        if cost.worst == 0 {
            return self.add_labeled("random read", "decompresses nothing");
        }
        self.add_labeled(
            "random read",
            &format!(
                "decompresses {} (mean), {} (p99), {} (worst)",
                format_size(cost.mean),
                format_size(cost.p99),
                format_size(cost.worst)
            ),
        );
    }

    /// Adds the table of the number of files of each size, with bars.
    fn sizes(&mut self, info: &Info) {
        let title =
            format!("{:>12} {:>10} {:>11}  part of the files", "file size", "files", "bytes");
        self.text.push_str(&(title + "\n"));
        let (rows, columns) = (rows(info), self.width.saturating_sub(TABLE));
        let all = rows.iter().map(|row| row.files).fold(0, u64::saturating_add).max(1);
        for Row { label, files, bytes } in rows {
            let (bytes, bar) = (format_size(bytes), bar(files as f64 / all as f64, columns));
            self.text.push_str(&format!("{label:>12} {files:>10} {bytes:>11}  {bar}\n"));
        }
    }
}

/// Files of similar size.
struct Row {
    label: String,
    files: u64,
    bytes: u64,
}

/// The rows from the first to the last that has a file.
fn rows(info: &Info) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut end = 0;
    for (digits, files, bytes) in info.sizes.classes() {
        if rows.is_empty() || digits > end {
            end = match digits {
                0 => 0,
                1..=FIRST_ROW => FIRST_ROW,
                LAST_ROW.. => u32::MAX,
                _ => FIRST_ROW + (digits - FIRST_ROW).next_multiple_of(ROW),
            };
            let label = match digits {
                0 => "empty".to_owned(),
                LAST_ROW.. => "larger".to_owned(),
                _ => format!("< {}", format_size(1 << end)),
            };
            rows.push(Row { label, files: 0, bytes: 0 });
        }
        if let Some(row) = rows.last_mut() {
            row.files = row.files.saturating_add(files);
            row.bytes = row.bytes.saturating_add(bytes);
        }
    }
    let first = rows.iter().position(|row| row.files > 0).unwrap_or(rows.len());
    let end_row = rows.iter().rposition(|row| row.files > 0).map_or(first, |last| last + 1);
    rows.drain(..end_row).skip(first).collect()
}

/// A number with its noun in the singular or plural.
fn count(number: impl Into<u64>, noun: &str) -> String {
    counted(number.into(), noun)
}

/// A rounded percentage. `0%` is exactly zero; small parts are `< 1%`.
fn percent(part: u64, whole: u64) -> String {
    let (part, whole) = (u128::from(part), u128::from(whole.max(1)));
    match (part * 200 + whole) / (whole * 2) {
        0 if part > 0 => "< 1%".to_owned(),
        rounded => format!("{rounded}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_rounded() {
        for (part, whole, text) in
            [(0, 0, "0%"), (0, 7, "0%"), (1, 1000, "< 1%"), (2, 3, "67%"), (7, 7, "100%")]
        {
            assert_eq!(percent(part, whole), text);
        }
        assert_eq!(percent(u64::MAX, u64::MAX), "100%");
    }

    #[test]
    fn lines_are_wrapped_and_long_words_are_not_cut() {
        let mut screen = Screen { text: String::new(), width: 24 };
        screen.add_labeled("what", "some words and one-that-is-too-long");
        let lines: Vec<_> = screen.text.lines().collect();
        assert_eq!(
            lines,
            ["what         some words", "             and", "             one-that-is-too-long",]
        );
    }
}
