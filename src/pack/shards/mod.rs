//! Writes shards as webdataset reads them: numbered tar archives of samples, shuffled once.
//!
//! Invariants: a sample is complete, in one piece and in one shard. The same sources, seed and size
//! give the same shards.
//!
//! Members are regular files with owner, mode and whole seconds of their time. Fractions of a
//! second would need a record of 1 KiB each, and no reader of shards uses them.

use std::path::Path;

use serde::Serialize;

use self::samples::{Sample, Samples};
use self::writer::Writer;
use super::Job;
use super::catalog::{Catalog, InodeId, Meta};
use super::feed::feed;
use super::output::Existing;
use super::tar::body::finished;
use super::tar::describe;
use super::tar::header::{BLOCK, Flag, Header, NO_XATTRS, pad};
use crate::error::{Error, Kind, Result};
use crate::units::counted;
use crate::vfs::Timestamp;

mod samples;
mod set;
#[cfg(test)]
mod tests;
mod writer;

pub(super) use set::{ShardSet, is_shard};

/// Whether samples get a member with their label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Labels {
    /// No labels.
    #[default]
    None,
    /// `KEY.cls` contains the number of the sample's top directory among all top directories, as
    /// text.
    ByDirectory,
}

/// The settings of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    /// Maximum size of a shard in bytes, unless one sample alone needs more.
    pub bytes: u64,
    /// Seed of the shuffle; `None` keeps samples in the order of names.
    pub seed: Option<u64>,
    /// Whether samples get labels.
    pub labels: Labels,
}

/// The result, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sharded {
    /// Number of shards.
    pub shards: u64,
    /// Number of samples in all shards.
    pub samples: u64,
    /// Number of their files, without labels.
    pub files: u64,
    /// Bytes of those files.
    pub bytes: u64,
    /// Number of classes.
    pub classes: u64,
    /// Bytes of all shards.
    pub stored: u64,
    /// What was left out on purpose, or may surprise the user.
    pub notes: Vec<String>,
}

/// Writes the shards of `path` (`a-000000.tar` and so on for `a.tar`), and with labels the names of
/// the classes (`a-classes.txt`, one per line). They get their names when the caller publishes
/// them, because the caller decides whether problems prevent that.
///
/// # Errors
/// The errors of the output, `Interrupted`, and `InvalidInput` if there is no sample.
pub(crate) fn write(
    job: &Job<'_>,
    catalog: &Catalog,
    shards: &Shards,
    epoch: Option<i64>,
    path: &Path,
    existing: Existing,
) -> Result<(ShardSet, Sharded)> {
    let mut set = ShardSet::new(path, existing)?;
    let samples = Samples::find(job, catalog, shards.labels);
    if samples.samples.is_empty() {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("{}: no samples to make shards of", path.display()),
        )
        .with_hint("the files of a sample are named KEY.EXTENSION"));
    }
    let count = u32::try_from(samples.samples.len()).map_err(|_| {
        Error::new(Kind::InvalidInput, format!("{}: more than 2^32 samples", path.display()))
    })?;
    let order = match shards.seed {
        Some(seed) => samples::shuffled(count, seed),
        None => (0..count).collect(),
    };
    let members = Members { catalog, samples: &samples, labels: shards.labels, epoch };
    let in_order = || order.iter().map(|&nth| samples.samples[nth as usize]);
    let cuts = samples::cut(in_order().map(|sample| members.size(sample)), shards.bytes, finished);
    let files: Vec<InodeId> =
        in_order().flat_map(|sample| samples.ids(catalog, sample).collect::<Vec<_>>()).collect();
    let mut writer = Writer::new(job, &members, &order, &cuts, &mut set);
    feed(
        job,
        catalog,
        &files,
        1,
        |parts| parts,
        |parts| parts.into_iter().try_for_each(|part| writer.take(part)),
    )?;
    let mut totals = writer.finish()?;
    if shards.labels == Labels::ByDirectory {
        let mut output = set.classes()?;
        for class in &samples.classes {
            if class.contains(&b'\n') {
                let message =
                    format!("{}: the name of a class has a newline", class.escape_ascii());
                return Err(Error::new(Kind::InvalidInput, message));
            }
            output.append(class)?;
            output.append(b"\n")?;
        }
        set.add(output)?;
        totals.classes = samples.classes.len() as u64;
    }
    totals.notes = samples.notes();
    totals.notes.extend(lost(catalog, &files));
    Ok((set, totals))
}

/// What shards do not store of `files`, a sentence for each kind.
fn lost(catalog: &Catalog, files: &[InodeId]) -> impl Iterator<Item = String> {
    let count = |has: &dyn Fn(&Meta) -> bool| {
        files.iter().filter(|&&file| has(&catalog.inode(file).meta)).count() as u64
    };
    let of = |count, what| {
        (count > 0)
            .then(|| format!("{what} of {} left out: shards have none", counted(count, "file")))
    };
    [
        of(count(&|meta| meta.xattrs.is_some()), "extended attributes"),
        of(count(&|meta| meta.modified.nanoseconds != 0), "fractions of seconds"),
    ]
    .into_iter()
    .flatten()
}

/// Encodes the members of samples.
struct Members<'m> {
    catalog: &'m Catalog,
    samples: &'m Samples,
    labels: Labels,
    epoch: Option<i64>,
}

impl Members<'_> {
    /// Bytes of all members of a sample.
    fn size(&self, sample: Sample) -> u64 {
        let files = self.samples.files(self.catalog, sample).map(|(path, id)| {
            let size = self.catalog.inode(id).size();
            self.header(&path, id).len() as u64 + size.next_multiple_of(BLOCK as u64)
        });
        files.sum::<u64>() + self.label(sample).map_or(0, |label| label.len() as u64)
    }

    /// The encoded header of a file.
    fn header(&self, path: &[u8], id: InodeId) -> Vec<u8> {
        self.plain_header(path, id).encode()
    }

    /// The complete member with the label of a sample.
    fn label(&self, sample: Sample) -> Option<Vec<u8>> {
        if self.labels == Labels::None {
            return None;
        }
        let class = self.samples.class(sample)?.to_string();
        let path = [&self.samples.key(self.catalog, sample)[..], b".cls"].concat();
        let first = self.samples.ids(self.catalog, sample).next()?;
        let size = class.len() as u64;
        let header = Header { size, permissions: 0o644, ..self.plain_header(&path, first) };
        let mut member = header.encode();
        member.extend(class.bytes());
        pad(&mut member);
        Some(member)
    }

    fn plain_header<'h>(&'h self, path: &'h [u8], id: InodeId) -> Header<'h> {
        let header = describe(self.catalog, id, path, self.epoch);
        let modified = Timestamp { nanoseconds: 0, ..header.modified };
        Header { flag: Flag::File, modified, xattrs: NO_XATTRS, ..header }
    }
}
