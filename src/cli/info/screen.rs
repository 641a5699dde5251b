//! The text output of `archfs info`.
//!
//! Invariants: no line is wider than the terminal, unless a single word is. At 80 columns there are
//! at most 30 lines.

use super::advice;
use crate::formats::{Image, Info, Layout, Shares, TarLayout};
use crate::log::printable;
use crate::units::show_size;

/// Columns of the labels.
const LABEL: usize = 13;

/// Default number of columns, and the limits.
const DEFAULT_WIDTH: usize = 80;
const WIDTHS: std::ops::RangeInclusive<usize> = 40..=100;

/// Binary digits of the sizes in a row of the chart: one row for sizes below 1 KiB, then one for
/// each factor of four.
const FIRST_ROW: u32 = 10;
const ROW: u32 = 2;

/// The last row has all larger files, from 1 GiB on.
const LAST_ROW: u32 = 31;

/// Columns of the terminal.
pub(super) fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    let columns = if columns == 0 { DEFAULT_WIDTH } else { columns };
    columns.clamp(*WIDTHS.start(), *WIDTHS.end())
}

/// The lines for the archive at the path `archive`.
pub(super) fn lines(archive: &str, info: &Info, width: usize) -> String {
    let mut screen = Screen { text: String::new(), width };
    screen.add_labelled("archive", archive);
    match &info.layout {
        Layout::Image(image) => screen.image(info, image),
        Layout::Tar(stored) => screen.tar(info, stored),
    }
    screen.within(info);
    screen.cost(info);
    screen.text.push('\n');
    screen.sizes(info);
    screen.text.push('\n');
    for (nth, sentence) in advice::sentences(archive, info).iter().enumerate() {
        screen.add_labelled(if nth == 0 { "advice" } else { "" }, sentence);
    }
    screen.text
}

struct Screen {
    text: String,
    width: usize,
}

impl Screen {
    /// Adds a labelled text, wrapped to the width.
    fn add_labelled(&mut self, label: &str, what: &str) {
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
        let block = show_size(image.block_size.into());
        let Image { compressor, .. } = image;
        self.add_labelled(
            "format",
            &format!("SquashFS 4.0, {compressor}{options}, blocks of {block}"),
        );
        self.counts(info, image.bytes);
        let Shares { plain, compressed, holes, shared } = image.shares;
        let part = |part| percent(part, info.sizes.bytes());
        let mut stored = format!("{} compressed, {} plain", part(compressed), part(plain));
        if holes > 0 {
            stored.push_str(&format!(", {} holes", part(holes)));
        }
        if shared > 0 {
            stored.push_str(&format!("; {} stored once for several files", part(shared)));
        }
        self.add_labelled("stored", &stored);
        let found = image.fragments;
        let mut fragments = "none".to_owned();
        if found.used > 0 {
            let room = found.used.saturating_mul(image.block_size.into());
            let (full, ends) = (percent(found.bytes, room), found.files / found.used);
            fragments = format!("{} blocks, {full} full, {ends} files in each", found.used);
        }
        let unused = u64::from(image.fragments.blocks).saturating_sub(found.used);
        if unused > 0 {
            fragments.push_str(&format!("; {unused} more that no file uses"));
        }
        self.add_labelled("fragments", &fragments);
        let xattrs = match image.xattrs {
            None | Some(0) => "no xattrs".to_owned(),
            Some(count) => format!("{count} different sets of xattrs"),
        };
        let export = if image.is_exportable { "an export table" } else { "no export table" };
        let owners =
            if image.owners == 1 { "one owner" } else { &format!("{} owners", image.owners) };
        let tables = show_size(image.tables);
        self.add_labelled("tables", &format!("{tables}; {xattrs}, {export}, {owners}"));
    }

    fn tar(&mut self, info: &Info, stored: &TarLayout) {
        let decoded = show_size(stored.bytes);
        self.add_labelled(
            "format",
            &match stored.compressed {
                None => "tar".to_owned(),
                Some(found) => format!("tar in {}, decoded {decoded}", found.container),
            },
        );
        self.counts(info, info.bytes);
        if let Some(found) = stored.compressed {
            self.add_labelled(
                "chunks",
                &match found.chunks {
                    None => "none: all of it must be decoded to read any of it".to_owned(),
                    Some(1) => "one, which must be decoded to read any of it".to_owned(),
                    Some(count) => format!(
                        "{count} that can be decoded alone, {} in the mean, {} at most",
                        show_size(stored.bytes / u64::try_from(count.max(1)).unwrap_or(1)),
                        show_size(found.largest)
                    ),
                },
            );
        }
        let index = if stored.is_indexed { "saved" } else { "not saved" };
        let xattrs = if stored.has_xattrs { "xattrs" } else { "no xattrs" };
        let mut tables = format!("index {index}; {xattrs}");
        if stored.holes > 0 {
            tables.push_str(&format!("; {} of the files are holes", show_size(stored.holes)));
        }
        self.add_labelled("tables", &tables);
    }

    /// Adds the lines that all archives have.
    fn counts(&mut self, info: &Info, stored: u64) {
        let (bytes, kinds) = (info.sizes.bytes(), info.kinds);
        let (size, files) = (show_size(stored), show_size(bytes));
        let ratio = ratio(bytes, stored);
        self.add_labelled("size", &format!("{size} for {files} in files, a ratio of {ratio}"));
        let mut names = format!("{} files, {} folders", kinds.files, kinds.folders);
        for (count, what) in [
            (kinds.links, "links"),
            (kinds.devices, "devices"),
            (kinds.fifos, "fifos"),
            (kinds.sockets, "sockets"),
        ] {
            if count > 0 {
                names.push_str(&format!(", {count} {what}"));
            }
        }
        if kinds.hard_links > 0 {
            names.push_str(&format!("; {} of them are second names", kinds.hard_links));
        }
        self.add_labelled("names", &names);
    }

    fn within(&mut self, info: &Info) {
        if info.within.is_empty() {
            return;
        }
        let (mut images, mut files, mut bytes) = (0, 0_u64, 0_u64);
        for inner in &info.within {
            images += usize::from(matches!(inner.layout, Layout::Image(_)));
            files = files.saturating_add(inner.kinds.files);
            bytes = bytes.saturating_add(inner.sizes.bytes());
        }
        let (all, bytes) = (info.within.len(), show_size(bytes));
        let tars = all - images;
        let what =
            format!("{all} archives ({images} SquashFS, {tars} tar): {files} files, {bytes}");
        self.add_labelled("within", &what);
    }

    fn cost(&mut self, info: &Info) {
        let sizes = &info.sizes;
        let (mean, largest) = (show_size(sizes.mean()), show_size(sizes.largest()));
        self.add_labelled("file size", &format!("{mean} in the mean, {largest} at most"));
        let cost = info.cost;
        if cost.worst == 0 {
            return self.add_labelled("file read", "decodes nothing");
        }
        self.add_labelled(
            "file read",
            &format!(
                "decodes {} in the mean, {} at most for 99 of 100, {} at most",
                show_size(cost.mean),
                show_size(cost.p99),
                show_size(cost.worst)
            ),
        );
    }

    /// Draws the number of files of each size.
    fn sizes(&mut self, info: &Info) {
        let rows = rows(info);
        let max = rows.iter().map(|row| row.files).max().unwrap_or(0);
        self.text.push_str(&format!("{:>12} {:>10} {:>11}\n", "file size", "files", "bytes"));
        for Row { label, files, bytes } in rows {
            let fixed = format!("{label:>12} {files:>10} {:>11}  ", show_size(bytes));
            let room = self.width.saturating_sub(fixed.len());
            let bar = "#".repeat(bar(files, max, room));
            self.text.push_str(format!("{fixed}{bar}").trim_end());
            self.text.push('\n');
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
                _ => format!("< {}", show_size(1 << end)),
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

/// Columns of a bar for `count`, if `max` takes `room`. At least one unless `count` is 0.
fn bar(count: u64, max: u64, room: usize) -> usize {
    let room = u64::try_from(room).unwrap_or(0);
    let scaled = u128::from(count) * u128::from(room) / u128::from(max.max(1));
    usize::try_from(scaled).unwrap_or(0).max(usize::from(count > 0))
}

/// A rounded percentage. `0 %` is exactly zero; small parts are `< 1 %`.
fn percent(part: u64, whole: u64) -> String {
    let (part, whole) = (u128::from(part), u128::from(whole.max(1)));
    match (part * 200 + whole) / (whole * 2) {
        0 if part > 0 => "< 1 %".to_owned(),
        rounded => format!("{rounded} %"),
    }
}

/// The ratio of the size of the files to that of the archive.
fn ratio(files: u64, archive: u64) -> String {
    let hundredths = u128::from(files) * 100 / u128::from(archive.max(1));
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_rounded() {
        for (part, whole, text) in
            [(0, 0, "0 %"), (0, 7, "0 %"), (1, 1000, "< 1 %"), (2, 3, "67 %"), (7, 7, "100 %")]
        {
            assert_eq!(percent(part, whole), text);
        }
        assert_eq!(percent(u64::MAX, u64::MAX), "100 %");
        assert_eq!(ratio(150, 100), "1.50");
        assert_eq!(ratio(u64::MAX, 0), format!("{}.00", u64::MAX));
    }

    #[test]
    fn the_largest_bar_fills_its_room_and_the_smallest_is_visible() {
        assert_eq!(bar(10, 10, 40), 40);
        assert_eq!(bar(1, 1_000_000, 40), 1);
        assert_eq!(bar(0, 10, 40), 0);
        assert_eq!(bar(u64::MAX, u64::MAX, 40), 40);
    }

    #[test]
    fn lines_are_wrapped_and_long_words_are_not_cut() {
        let mut screen = Screen { text: String::new(), width: 24 };
        screen.add_labelled("what", "some words and one-that-is-too-long");
        let lines: Vec<_> = screen.text.lines().collect();
        assert_eq!(
            lines,
            ["what         some words", "             and", "             one-that-is-too-long",]
        );
    }
}
