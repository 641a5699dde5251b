//! Goes along the headers of an archive, also where their chain breaks: at ends, zeros and damage.
//! `chain` does a single step.

use std::cmp::Ordering;

use super::chain::Chain;
use super::header::{self, BLOCK, BLOCK_LEN, Block, BlockKind, Dialect, Header};
use super::member::Nesting;
use super::source::Source;
use super::step::{Skip, Step};
use crate::error::{Error, Result};
use crate::formats::index::members::Members;
use crate::formats::index::notes::Notes;
use crate::formats::index::paths::shown;
use crate::formats::limits::TAR_SEARCH_MAX;

/// What pixz appends to a tar that it compresses: a list of the members, which starts with this
/// magic (pixz.h: PIXZ_INDEX_MAGIC, little-endian).
const PIXZ_LIST: [u8; 8] = 0xdbae_14d6_2e32_4ca6_u64.to_le_bytes();

/// A chain of headers, and what to do where it breaks.
pub(super) struct Walk {
    pub(super) chain: Chain,
    start: u64,
    end: u64,
    /// Whether the last step found an end mark.
    after_end_mark: bool,
}

impl Walk {
    pub(super) fn new(start: u64, end: u64, nesting: Nesting) -> Self {
        Self { chain: Chain::new(start, end, nesting), start, end, after_end_mark: false }
    }

    /// Continues at `offset`, after members that another chain found.
    pub(super) fn pass_members(&mut self, offset: u64) {
        self.chain.skip_to(offset);
        self.after_end_mark = false;
    }

    /// Steps to the next member. Returns `false` if there is none.
    pub(super) fn step(
        &mut self,
        source: &mut dyn Source,
        members: &mut Members,
        notes: &mut Notes,
    ) -> Result<bool> {
        match self.chain.step(source, members)? {
            Step::Member | Step::Skipped(None) => {}
            Step::Skipped(Some(Skip { what, path })) => notes.skip(&what, path.as_deref()),
            Step::Damaged { path, error } => notes.loss(&path, &error),
            Step::Truncated(path) => {
                let what = match path.as_slice() {
                    [] => "a header".to_owned(),
                    path => format!("\"{}\"", shown(path)),
                };
                let error = cut_off(&what)
                    .with_detail(format_args!("header at {:#x}", self.chain.offset()));
                notes.loss(&path, &error);
                return Ok(false);
            }
            Step::End => {
                self.handle_end(source, members, notes);
                return Ok(false);
            }
            Step::Zeros => return self.handle_zeros(source, notes),
            Step::Garbage => return self.handle_garbage(source, notes),
        }
        self.after_end_mark = false;
        Ok(true)
    }

    /// Handles the end of the bytes where a header could start. A source that did not know its end
    /// may have added a member whose data is missing.
    fn handle_end(&self, source: &dyn Source, members: &mut Members, notes: &mut Notes) {
        let end = source.end().unwrap_or(self.end).min(self.end);
        let last = members.list().last().filter(|last| members.data_end(last) > end);
        if let Some(last) = last {
            let path = members.path(last);
            notes.loss(path, &cut_off(&format!("\"{}\"", shown(path))));
            members.pop();
        } else if !self.after_end_mark && self.chain.offset() > self.start {
            let detail = format_args!("end at {end:#x}");
            // A few bytes more are the start of a header.
            let no_mark = || Error::corrupt("no end mark: perhaps cut off").with_detail(detail);
            match self.chain.offset().cmp(&end) {
                Ordering::Less => notes.loss(&[], &cut_off("a header").with_detail(detail)),
                // Some programs write none. Every member is complete.
                Ordering::Equal => notes.unusual(&no_mark()),
                // The padding of the last member is missing.
                Ordering::Greater => notes.damage(&no_mark()),
            }
        }
    }

    /// Handles zeros. Another archive may follow the end mark, as after `cat a.tar b.tar`.
    fn handle_zeros(&mut self, source: &mut dyn Source, notes: &mut Notes) -> Result<bool> {
        self.after_end_mark = true;
        let start = self.chain.offset();
        let mut at = start;
        while at.saturating_sub(start) < TAR_SEARCH_MAX {
            let Some(block) = self.block(source, at)? else {
                return Ok(false);
            };
            match header::classify(&block) {
                BlockKind::Zeros => at = at.saturating_add(BLOCK_LEN),
                BlockKind::Header => {
                    self.chain.skip_to(at);
                    return Ok(true);
                }
                BlockKind::Garbage if block.starts_with(&PIXZ_LIST) => return Ok(false),
                BlockKind::Garbage => {
                    let error = Error::corrupt("the data after the end is not a tar: ignored");
                    notes.damage(&error.with_detail(format_args!("data at {at:#x}")));
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }

    /// Searches for the next header. Here only a header that names its format counts.
    fn handle_garbage(&mut self, source: &mut dyn Source, notes: &mut Notes) -> Result<bool> {
        let start = self.chain.offset();
        let mut at = start;
        while at.saturating_sub(start) < TAR_SEARCH_MAX {
            let Some(block) = self.block(source, at)? else { break };
            let names_format =
                Header::parse(&block).is_some_and(|found| found.dialect() != Dialect::V7);
            if names_format {
                let what = "damaged: there is no header where one should be; members are missing";
                let range = format_args!("no header from {start:#x} to {at:#x}");
                notes.loss(&[], &Error::corrupt(what).with_detail(range));
                self.chain.skip_to(at);
                return Ok(true);
            }
            at = at.saturating_add(BLOCK_LEN);
        }
        let error = Error::corrupt("damaged: there is no further header; the rest is missing");
        notes.loss(&[], &error.with_detail(format_args!("no header after {start:#x}")));
        Ok(false)
    }

    fn block(&self, source: &mut dyn Source, offset: u64) -> Result<Option<Block>> {
        if offset.saturating_add(BLOCK_LEN) > self.end {
            return Ok(None);
        }
        Ok(source.bytes(offset, BLOCK)?.and_then(|bytes| bytes.first_chunk().copied()))
    }
}

/// The error for a truncated archive whose last part is `what`.
fn cut_off(what: &str) -> Error {
    Error::corrupt(format!("cut off: {what} and everything after it is missing"))
}
