//! Laying down shards as webdataset reads them: numbered tars of samples, shuffled once for all.
//!
//! Owns what a person chooses, and the order of the work; leaves samples to `samples`, their order
//! to `plan`, writing to `writer`, and that all shards appear together to `set`.
//! Invariants: a sample is in one shard, whole and in one piece; the same sources, seed and size
//! give the same shards.
//!
//! Members are plain files with their owner, mode and whole seconds of their time: parts of a
//! second would need a record of 1 KiB for each, and readers of shards look at none of that.

use std::path::Path;

use serde::Serialize;

use self::samples::{Sample, Samples};
use self::set::Set;
use self::writer::Writer;
use super::Job;
use super::catalog::{Catalog, InodeId};
use super::feed::feed;
use super::output::Existing;
use super::tar::body::finished;
use super::tar::describe;
use super::tar::header::{BLOCK, Flag, Header, NO_XATTRS, pad};
use crate::error::{Error, Kind, Result};
use crate::vfs::Timestamp;

mod plan;
mod samples;
mod set;
#[cfg(test)]
mod tests;
mod writer;

pub(super) use set::is_shard;

/// Whether samples get a member that says what they show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Labels {
    /// As they are.
    #[default]
    None,
    /// `KEY.cls` holds the number of the sample's top folder among all top folders, as text.
    ByFolder,
}

/// How shards are to be laid down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    /// Bytes of a shard at most, unless one sample alone needs more.
    pub bytes: u64,
    /// What the shuffle starts from; `None`: samples come in the order of names.
    pub seed: Option<u64>,
    /// Whether samples get labels.
    pub labels: Labels,
}

/// What was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sharded {
    /// Shards.
    pub shards: u64,
    /// Samples in all of them.
    pub samples: u64,
    /// Files of them, without labels.
    pub files: u64,
    /// Bytes of those files.
    pub bytes: u64,
    /// Classes that labels stand for.
    pub classes: u64,
    /// Bytes of all shards.
    pub stored: u64,
    /// What was left out on purpose, or may be taken otherwise than it was meant.
    pub notes: Vec<String>,
}

/// Shards that are whole and wait for their names.
pub(crate) struct Waiting {
    set: Set,
}

impl Waiting {
    /// Gives all of them their names.
    ///
    /// # Errors
    /// Those of the output.
    pub(crate) fn publish(self) -> Result<()> {
        self.set.publish()
    }
}

/// Writes the shards of `path` (`a-000000.tar` and so on of `a.tar`), and with labels the names of
/// classes (`a-classes.txt`, one a line). Nothing has its name before the caller publishes it: it
/// decides what becomes of them where the job met problems.
///
/// # Errors
/// Those of the output, `Interrupted`, and `InvalidInput` where there is no sample at all.
pub(crate) fn write(
    job: &Job<'_>,
    catalog: &Catalog,
    shards: &Shards,
    epoch: Option<i64>,
    path: &Path,
    existing: Existing,
) -> Result<(Waiting, Sharded)> {
    let mut set = Set::new(path, existing)?;
    let samples = Samples::find(job, catalog, shards.labels);
    if samples.samples.is_empty() {
        return Err(Error::new(Kind::InvalidInput, "there are no samples to make shards of")
            .with_hint("samples are files with a name like KEY.EXTENSION"));
    }
    let count = u32::try_from(samples.samples.len())
        .map_err(|_| Error::new(Kind::InvalidInput, "shards hold up to 2^32 samples"))?;
    let order = match shards.seed {
        Some(seed) => plan::shuffled(count, seed),
        None => (0..count).collect(),
    };
    let members = Members { catalog, samples: &samples, labels: shards.labels, epoch };
    let in_order = || order.iter().map(|&nth| samples.samples[nth as usize]);
    let cuts = plan::cut(in_order().map(|sample| members.size(sample)), shards.bytes, finished);
    let files: Vec<InodeId> =
        in_order().flat_map(|sample| samples.ids(catalog, sample).collect::<Vec<_>>()).collect();
    let mut writer = Writer::new(job, &members, &order, &cuts, &mut set);
    feed(job, catalog, &files, 1, |pieces| pieces, |pieces| writer.take(pieces))?;
    let mut made = writer.finish()?;
    if shards.labels == Labels::ByFolder {
        let mut output = set.classes()?;
        for class in &samples.classes {
            if class.contains(&b'\n') {
                let what = format!("{}: no class can have a newline in it", class.escape_ascii());
                return Err(Error::new(Kind::InvalidInput, what));
            }
            output.append(class)?;
            output.append(b"\n")?;
        }
        set.add(output)?;
        made.classes = samples.classes.len() as u64;
    }
    made.notes = samples.notes();
    Ok((Waiting { set }, made))
}

/// What the members of samples look like.
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

    /// What stands in front of a file.
    fn header(&self, path: &[u8], id: InodeId) -> Vec<u8> {
        self.plain(path, id).encode()
    }

    /// The whole member that labels a sample.
    fn label(&self, sample: Sample) -> Option<Vec<u8>> {
        if self.labels == Labels::None {
            return None;
        }
        let class = self.samples.class(sample)?.to_string();
        let path = [&self.samples.key(self.catalog, sample)[..], b".cls"].concat();
        let first = self.samples.ids(self.catalog, sample).next()?;
        let size = class.len() as u64;
        let header = Header { size, permissions: 0o644, ..self.plain(&path, first) };
        let mut member = header.encode();
        member.extend(class.bytes());
        pad(&mut member);
        Some(member)
    }

    fn plain<'h>(&'h self, path: &'h [u8], id: InodeId) -> Header<'h> {
        let header = describe(self.catalog, id, path, self.epoch);
        let modified = Timestamp { nanoseconds: 0, ..header.modified };
        Header { flag: Flag::File, modified, xattrs: NO_XATTRS, ..header }
    }
}
