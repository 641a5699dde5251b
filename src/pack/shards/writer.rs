//! Writes samples into shards, piece by piece.
//!
//! A sample is written with all its files or not at all.
//!
//! Invariant: parts come in the order of the plan. So a part belongs to the next file of the plan
//! with its inode, and all files before that could not be read.

use std::collections::HashSet;
use std::ops::Range;

use super::samples::Sample;
use super::{Members, ShardSet, Sharded};
use crate::error::{Error, Result};
use crate::pack::Job;
use crate::pack::catalog::InodeId;
use crate::pack::feed::Part;
use crate::pack::output::Output;
use crate::pack::tar::body::{Body, changed, finish};

pub(super) struct Writer<'w> {
    job: &'w Job<'w>,
    members: &'w Members<'w>,
    order: &'w [u32],
    cuts: &'w [Range<usize>],
    set: &'w mut ShardSet,
    /// The shard that is being written, and its number.
    output: Option<Output>,
    shard: usize,
    /// Number of samples started.
    started: usize,
    sample: Option<OpenSample>,
    file: Option<(InodeId, Body)>,
    left_out: HashSet<InodeId>,
    totals: Sharded,
}

struct OpenSample {
    sample: Sample,
    /// Its offset in the shard, and whether it is kept.
    start: u64,
    fate: Fate,
    files: Vec<(Vec<u8>, InodeId)>,
    /// Number of its files started.
    started: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Dropped,
}

impl<'w> Writer<'w> {
    pub(super) fn new(
        job: &'w Job<'w>,
        members: &'w Members<'w>,
        order: &'w [u32],
        cuts: &'w [Range<usize>],
        set: &'w mut ShardSet,
    ) -> Self {
        Self {
            job,
            members,
            order,
            cuts,
            set,
            output: None,
            shard: 0,
            started: 0,
            sample: None,
            file: None,
            left_out: HashSet::new(),
            totals: Sharded::default(),
        }
    }

    /// Writes the next file, or a part of it.
    pub(super) fn take(&mut self, Part { file, pieces }: Part) -> Result<()> {
        if self.left_out.contains(&file) {
            return Ok(());
        }
        if self.file.as_ref().is_some_and(|(open, _)| *open != file) {
            self.end_early();
        }
        let pieces = match pieces {
            Ok(pieces) => pieces,
            Err(error) => {
                self.leave_out(file, &error);
                return Ok(());
            }
        };
        if self.file.is_none() {
            self.begin(file)?;
        }
        let (Some((_, body)), Some(output)) = (&mut self.file, &mut self.output) else {
            return Ok(());
        };
        match body.put(output, &pieces)? {
            Err(error) => self.leave_out(file, &error),
            Ok(()) if body.is_whole() => {
                if let Some((_, body)) = self.file.take() {
                    body.end(output)?;
                }
            }
            Ok(()) => {}
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Sharded> {
        self.end_early();
        while self.next()?.is_some() {
            self.drop_sample();
        }
        self.end_shard()?;
        Ok(self.totals)
    }

    /// Starts the next file of the plan with this inode.
    fn begin(&mut self, id: InodeId) -> Result<()> {
        while let Some((path, found)) = self.next()? {
            if found != id {
                self.drop_sample();
                continue;
            }
            let size = self.members.catalog.inode(id).size();
            if let Some(output) = &mut self.output {
                let header = self.members.header(&path, id);
                self.file = Some((id, Body::begin(output, &header, size, None)?));
            }
            break;
        }
        Ok(())
    }

    /// The next file of the plan. Starts and ends samples and shards where needed.
    fn next(&mut self) -> Result<Option<(Vec<u8>, InodeId)>> {
        loop {
            if let Some(open) = &mut self.sample
                && let Some(found) = open.files.get_mut(open.started)
            {
                open.started += 1;
                return Ok(Some((std::mem::take(&mut found.0), found.1)));
            }
            self.end_sample()?;
            let Some(&number) = self.order.get(self.started) else { return Ok(None) };
            if self.cuts.get(self.shard).is_some_and(|cut| self.started >= cut.end) {
                self.end_shard()?;
                self.shard += 1;
            }
            let output = match self.output.take() {
                Some(output) => output,
                None => self.set.shard()?,
            };
            let start = output.len();
            self.output = Some(output);
            self.started += 1;
            let sample = self.members.samples.samples[number as usize];
            let files = self.members.samples.files(self.members.catalog, sample).collect();
            self.sample = Some(OpenSample { sample, start, fate: Fate::Kept, files, started: 0 });
        }
    }

    fn end_sample(&mut self) -> Result<()> {
        let (Some(open), Some(output)) = (self.sample.take(), &mut self.output) else {
            return Ok(());
        };
        if open.fate == Fate::Dropped {
            return output.truncate(open.start);
        }
        if let Some(label) = self.members.label(open.sample) {
            output.append(&label)?;
        }
        self.totals.samples += 1;
        self.totals.files += open.files.len() as u64;
        let size = |(_, id): &(_, InodeId)| self.members.catalog.inode(*id).size();
        self.totals.bytes += open.files.iter().map(size).sum::<u64>();
        Ok(())
    }

    fn end_shard(&mut self) -> Result<()> {
        let Some(mut output) = self.output.take() else { return Ok(()) };
        finish(&mut output)?;
        self.totals.shards += 1;
        self.totals.stored += output.len();
        self.set.add(output)
    }

    fn end_early(&mut self) {
        if let Some((id, _)) = &self.file {
            self.leave_out(*id, &changed());
        }
    }

    /// Records a file that cannot be read. Its samples are dropped when the plan reaches them; the
    /// current sample is dropped now if the file was being written.
    fn leave_out(&mut self, id: InodeId, error: &Error) {
        self.job.problem(self.members.catalog.origin(id), error);
        self.left_out.insert(id);
        if self.file.take().is_some() {
            self.drop_sample();
        }
    }

    fn drop_sample(&mut self) {
        if let Some(open) = &mut self.sample {
            open.fate = Fate::Dropped;
        }
    }
}
