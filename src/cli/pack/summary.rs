//! The result of `archfs pack` as text and JSON. Invariant: the JSON keys are stable (docs/CLI.md).

use std::time::Duration;

use serde::Serialize;

use crate::cli::term;
use crate::error::{Error, Kind, Result};
use crate::pack::{CreatedArchive, Layout, Request};
use crate::units::{counted, format_percent, format_size};
use crate::vfs::Counts;

/// The result of one run.
pub(super) struct Summary<'s> {
    request: &'s Request,
    archive: &'s CreatedArchive,
    time: Duration,
    /// Size of the archive or of all shards, bytes.
    size: u64,
}

/// The keys of `--json` for every format.
#[derive(Serialize)]
struct Row<'r> {
    archive: &'r str,
    format: &'static str,
    bytes: u64,
    stored_bytes: u64,
    seconds: f64,
    problems: usize,
    hidden: u64,
    excluded: u64,
    #[serde(flatten)]
    rest: serde_json::Value,
}

impl<'s> Summary<'s> {
    /// Describes `archive`, which took `time` to write.
    pub(super) fn of(request: &'s Request, archive: &'s CreatedArchive, time: Duration) -> Self {
        let on_disk = || std::fs::metadata(&request.archive).map_or(0, |found| found.len());
        let size = match archive {
            CreatedArchive::Shards(sharded) => sharded.stored,
            CreatedArchive::Image(_) | CreatedArchive::Tar(_) => on_disk(),
        };
        Self { request, archive, time, size }
    }

    /// Bytes of all files in the archive.
    fn bytes(&self) -> u64 {
        match self.archive {
            CreatedArchive::Image(layout) => layout.bytes,
            CreatedArchive::Tar(members) => members.bytes,
            CreatedArchive::Shards(sharded) => sharded.bytes,
        }
    }

    /// One JSON object.
    pub(super) fn json(&self, problems: usize, hidden: u64, excluded: u64) -> Result<String> {
        let (format, rest) = match self.archive {
            CreatedArchive::Image(layout) => ("squashfs", serde_json::to_value(layout)),
            CreatedArchive::Tar(members) => ("tar", serde_json::to_value(members)),
            CreatedArchive::Shards(sharded) => ("shards", serde_json::to_value(sharded)),
        };
        let failed =
            |error: serde_json::Error| Error::new(Kind::Io, "cannot write JSON").with_source(error);
        let mut rest = rest.map_err(failed)?;
        if let Some(keys) = rest.as_object_mut() {
            // `Row` has these keys for every format.
            keys.remove("bytes");
            keys.remove("stored_bytes");
            keys.remove("stored");
        }
        let row = Row {
            archive: &self.request.archive.display().to_string(),
            format,
            bytes: self.bytes(),
            stored_bytes: self.size,
            seconds: self.time.as_secs_f64(),
            problems,
            hidden,
            excluded,
            rest,
        };
        serde_json::to_string(&row).map_err(failed)
    }

    /// What was made, on one line, what was not kept of the sources, and, if `has_layout`, the
    /// layout of an image.
    pub(super) fn lines(&self, has_layout: bool) -> Vec<String> {
        let mut lines = vec![self.first_line()];
        let notes = match self.archive {
            CreatedArchive::Image(layout) => {
                if let Some(base) = &self.request.base {
                    let base = base.display();
                    lines.push(match layout.reused {
                        0 => format!("no file is unchanged since {base}"),
                        count => format!(
                            "{} ({}) unchanged since {base}, and copied from it",
                            counted(count, "file"),
                            format_size(layout.reused_bytes)
                        ),
                    });
                }
                if has_layout {
                    lines.extend(image_lines(layout));
                }
                &layout.notes
            }
            CreatedArchive::Tar(members) => &members.notes,
            CreatedArchive::Shards(sharded) => &sharded.notes,
        };
        lines.extend(notes.iter().cloned());
        // The first line names the archive itself.
        let archive = self.request.archive.display();
        lines.iter_mut().skip(1).for_each(|line| *line = format!("{archive}: {line}"));
        lines
    }

    fn first_line(&self) -> String {
        let (bytes, archive) = (self.bytes(), self.request.archive.display());
        let contents = match self.archive {
            CreatedArchive::Image(layout) => term::contents(Counts {
                files: layout.files,
                directories: layout.directories,
                links: layout.symlinks,
                others: layout.specials,
                bytes,
            }),
            CreatedArchive::Tar(members) => term::contents(Counts {
                files: members.files,
                directories: members.directories,
                links: members.symlinks,
                others: members.devices,
                bytes,
            }),
            CreatedArchive::Shards(sharded) => format!(
                "{} of {} in {}, {}",
                counted(sharded.samples, "sample"),
                counted(sharded.files, "file"),
                counted(sharded.shards, "shard"),
                format_size(bytes)
            ),
        };
        let (size, pace) = (format_size(self.size), term::pace(bytes, self.time));
        let named = match self.archive {
            CreatedArchive::Shards(_) => {
                self.request.archive.with_extension("").display().to_string() + "-*.tar"
            }
            _ => archive.to_string(),
        };
        format!("{named}: {contents} stored as {size}; {pace}")
    }
}

/// The layout of an image, and what it means for reads.
fn image_lines(layout: &Layout) -> Vec<String> {
    let level = layout.level.map_or_else(String::new, |level| format!(":{level}"));
    let blocks = layout.plain_blocks + layout.compressed_blocks;
    let mut text = format!(
        "blocks of {}, {}{level}",
        format_size(layout.block_size.into()),
        layout.compressor
    );
    if blocks > 0 && layout.plain_blocks > 0 {
        let share = format_percent(layout.plain_blocks as f64 / blocks as f64);
        text.push_str(&format!("; {share} of them stored uncompressed"));
    }
    if layout.fragments > 0 {
        text.push_str(&format!(
            "; small files share {} of at most {}",
            counted(layout.fragments, "block"),
            format_size(layout.read_cost.into())
        ));
    }
    let decoded = format_size(layout.mean_decoded as u64);
    text.push_str(&format!("; reading one file decompresses {decoded} on average"));
    let mut lines = vec![text];
    if layout.duplicates > 0 {
        lines.push(format!(
            "{} the same contents as other files; {} not stored again",
            match layout.duplicates {
                1 => "1 file has".to_owned(),
                count => format!("{count} files have"),
            },
            format_size(layout.duplicate_bytes)
        ));
    }
    lines
}
