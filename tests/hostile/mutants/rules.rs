//! Allowed differences between archfs and the other reader, each with its reason.
//!
//! Invariant: for an image, no rule allows two different values; rules only allow facts that archfs
//! alone returns.

use std::fmt;

use super::facts::{self, Facts};
use super::oracle::ENDED;

/// The formats of mutants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Squashfs,
    Tar,
    Zip,
}

/// A fact that the other reader does not confirm.
#[derive(Clone, Copy)]
pub(crate) struct Case<'f> {
    pub(crate) key: &'f str,
    pub(crate) value: &'f str,
    /// The other reader's value.
    pub(crate) other: Option<&'f String>,
    pub(crate) ours: &'f Facts,
    pub(crate) theirs: &'f Facts,
    pub(crate) sound: &'f Facts,
    /// The name of the sound archive.
    pub(crate) seed: &'f str,
}

impl Case<'_> {
    /// The rule that allows the difference.
    pub(crate) fn rule(&self, format: Format) -> Option<&'static str> {
        match format {
            Format::Squashfs => self.rule_of_images(),
            Format::Tar => self.rule_of_tars(),
            Format::Zip => self.rule_of_zips(),
        }
    }

    fn rule_of_images(&self) -> Option<&'static str> {
        if self.other.is_some() {
            return None;
        }
        let (object, what) = self.key.split_once('.')?;
        let refused = |what: &str| self.theirs.refused.get(&format!("{object}.{what}"));
        let refused_inode = refused("kind");
        if refused_inode.is_some_and(|why| why == ENDED) {
            return Some("libsquashfs crashes over this inode");
        }
        if self.is_as_packed() {
            return Some("libsquashfs refuses it, and archfs gives what was packed");
        }
        // libsquashfs reads the whole inode at once: block list, index and target, whatever their
        // length. archfs and Linux read those parts on demand. Beyond a false length they find
        // holes.
        let is_content = what.starts_with('c');
        // Only the last piece may be in a fragment.
        if refused_inode.is_some() && (!is_content || self.is_zeros(object) || self.is_last(object))
        {
            return Some(
                "libsquashfs refuses an inode for the end of it, which archfs reads later",
            );
        }
        // Only libsquashfs refuses bytes after a stream; unsquashfs, Linux and archfs stop at its
        // end. Damage inside is found by the checksum that mksquashfs puts into each stream.
        let is_xz = self.seed.contains("xz");
        if is_content && is_xz && self.theirs.refused.get(self.key).is_some_and(|why| why == "!-3")
        {
            return Some("bytes behind an xz stream, which only libsquashfs minds");
        }
        // libsquashfs reads names and values in turn and stops at the first bad value. archfs lists
        // names without values and reads each value separately.
        let is_attribute = what.starts_with('x');
        let prefix = format!("{object}.x");
        let mut behind = self.ours.refused.range(prefix.clone()..);
        if is_attribute
            && refused("xend").is_some()
            && behind.next().is_some_and(|(key, _)| key.starts_with(&prefix))
        {
            return Some("libsquashfs stops at a bad attribute, archfs refuses only that one");
        }
        None
    }

    fn rule_of_tars(&self) -> Option<&'static str> {
        let (object, what) = self.key.split_once('.')?;
        let ours = |what: &str| self.ours.known.get(&format!("{object}.{what}"));
        let theirs = |what: &str| self.theirs.known.get(&format!("{object}.{what}"));
        let is_directory = ours("kind").is_some_and(|kind| kind == "1");
        if is_directory && !what.starts_with('n') {
            // GNU tar makes it with the default mode, the current user and the current time.
            let is_usual = what != "mode" || self.value == "755";
            if theirs("implied").is_some() && is_usual {
                return Some("a directory that no header names: its attributes are made up");
            }
            // Linux shows nothing below anything but a directory.
            let prefix = format!("{object}.n");
            let is_child =
                |(key, _): (&String, &String)| key.starts_with(&prefix) && !key.ends_with(".nlink");
            let has_children = self.ours.known.range(prefix.clone()..).next().is_some_and(is_child);
            if has_children && theirs("kind").is_some_and(|kind| kind != "1") {
                return Some("what has members beneath it is a directory, whatever a header says");
            }
        }
        let number = |text: &str| text.parse::<i64>().ok();
        let wide = |text: &String| number(text).is_some_and(|id| u32::try_from(id).is_err());
        if matches!(what, "uid" | "gid") && self.value == "65534" && self.other.is_some_and(wide) {
            return Some("an owner beyond 32 bits is shown as nobody");
        }
        // If an extension gives an empty name, GNU tar uses the header's own.
        if what == "target" && self.other.is_some_and(String::is_empty) && self.is_as_packed() {
            return Some("an empty long name is none");
        }
        // GNU tar applies it to all links that follow.
        let for_all = "global records other than owners and times";
        if what == "target" && self.ours.has_finding(for_all) {
            return Some("a target for all members alike, which archfs leaves out and reports");
        }
        // Like GNU tar. tarfile ignores a missing newline. The header has room for a hundred bytes.
        let begins = |sound: &String| self.value.len() == 200 && sound.starts_with(self.value);
        if what == "target" && self.sound.known.get(self.key).is_some_and(begins) {
            return Some("a damaged record of a long target: the target is the header's own");
        }
        // After damage, only a header that names its format is accepted.
        let is_cut = self.ours.has_finding("; the rest is missing");
        if self.seed.contains("v7") && is_cut && self.is_as_packed() {
            return Some("v7 headers behind damage are not looked for, of which archfs tells");
        }
        // tarfile accepts a record whose length is wrong; GNU tar and archfs drop it. Then the
        // header's own name remains, which is the start of the long name.
        let name = what.strip_prefix('n').unwrap_or(object);
        let begins = |(key, _): (&String, &String)| {
            key.rsplit_once(if what.starts_with('n') { ".n" } else { "." }).is_some_and(
                |(other, last)| {
                    let whole = if what.starts_with('n') { last } else { other };
                    whole.len() > name.len() && whole.starts_with(name)
                },
            )
        };
        if self.other.is_none() && name.len() >= 190 && self.sound.known.iter().any(begins) {
            return Some("a damaged record of a long name: the name is the header's own");
        }
        if self.other.is_none() && self.is_as_packed() {
            return Some("tarfile does not find it, and archfs gives what was packed");
        }
        None
    }

    fn rule_of_zips(&self) -> Option<&'static str> {
        let (object, what) = self.key.split_once('.')?;
        let ours = |what: &str| self.ours.known.get(&format!("{object}.{what}"));
        let theirs = |what: &str| self.theirs.known.get(&format!("{object}.{what}"));
        if ours("kind").is_some_and(|kind| kind == "1") && !what.starts_with('n') {
            // Its owner and time are those of the first member in it.
            if theirs("implied").is_some() && !self.ours.findings.is_empty() {
                return Some("a directory whose first member archfs leaves out, and reports");
            }
            let is_reported = match object {
                "/" => !self.ours.findings.is_empty(),
                path => self.ours.has_finding_at(path),
            };
            if is_reported {
                return Some("a directory whose entry archfs leaves out, and reports");
            }
            // Linux shows nothing below anything but a directory.
            if theirs("kind").is_some_and(|kind| kind != "1") {
                return Some("what has members beneath it is a directory, whatever an entry says");
            }
        }
        // The entry of a mutant may have another name. No fact is another than was packed.
        let is_new = !self.sound.known.contains_key(self.key);
        if self.theirs.refused.contains_key("open") && (is_new || self.is_as_packed()) {
            return Some("zipfile refuses the archive, and archfs gives what was packed");
        }
        None
    }

    /// Whether the value is that of the sound archive, or of another block of it.
    fn is_as_packed(&self) -> bool {
        let sound = &self.sound.known;
        let is_content = self.key.contains(".c");
        sound.get(self.key).is_some_and(|sound| sound == self.value)
            || is_content
                && sound.iter().any(|(key, value)| key.contains(".c") && value == self.value)
    }

    /// Whether the value is the CRC of zeros, for the length of that piece of `object`.
    fn is_zeros(&self, object: &str) -> bool {
        self.piece(object).is_some_and(|(size, nth)| facts::crc_of_zeros(size, nth) == self.value)
    }

    /// Whether it is the last piece of `object`.
    fn is_last(&self, object: &str) -> bool {
        self.piece(object).is_some_and(|(size, nth)| facts::is_last(size, nth))
    }

    /// The size of the file `object`, and the index of this piece.
    fn piece(&self, object: &str) -> Option<(u64, u64)> {
        let size = self.ours.known.get(&format!("{object}.size"))?;
        let (_, nth) = self.key.rsplit_once(".c")?;
        Some((size.parse().ok()?, u64::from_str_radix(nth, 16).ok()?))
    }
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, .. } = self;
        let object = key.split_once('.').map_or(*key, |(object, _)| object);
        write!(f, "{key} is {value}, ")?;
        match self.sound.known.get(*key) {
            Some(sound) if sound == value => write!(f, "as packed")?,
            Some(sound) => write!(f, "{sound} was packed")?,
            None => write!(f, "nothing was packed")?,
        }
        if let Some(other) = self.other {
            return write!(f, "; the other says {other}");
        }
        let whole = [".end", ".xend", ".kind"].map(|end| format!("{object}{end}"));
        let whole = whole.iter().map(String::as_str);
        let mut keys = std::iter::once(*key).chain(whole).chain(["open", "decoded", "error"]);
        match keys.find_map(|key| Some((key, self.theirs.refused.get(key)?))) {
            Some((key, why)) => write!(f, "; the other refuses {key}: {why}"),
            None => write!(f, "; the other says nothing"),
        }
    }
}
