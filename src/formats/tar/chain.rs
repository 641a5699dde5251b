//! Goes along the headers of an archive. A `Chain` steps from one member to the next, skips the
//! data, and combines a member's header with the extensions before it; `member` does the rest. A
//! `Walk` also handles breaks in the chain: ends, zeros and damage.
//!
//! Invariant: each step ends after it starts, so a chain is finite.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use super::extensions::Extensions;
use super::header::{
    self, BLOCK, BLOCK_LEN, Block, BlockKind, Dialect, ExtensionType, Header, Type, padded,
};
use super::member::{MemberHeader, Nesting, Skip, Step, add_member, header_at};
use super::source::{self, Source};
use crate::error::{Error, Result};
use crate::formats::bytes::index;
use crate::formats::index::HeaderRun;
use crate::formats::index::members::{Members, shown};
use crate::formats::index::notes::Notes;
use crate::formats::limits::{TAR_EXTENSION_MAX, TAR_EXTENSIONS_MAX, TAR_SEARCH_MAX};

/// A position in the chain of headers.
pub(super) struct Chain {
    /// Offset of the next block.
    offset: u64,
    /// End of the archive that this chain runs through.
    end: u64,
    /// Records of the global headers so far.
    globals: Extensions,
    nesting: Nesting,
}

/// The extensions before a member, as far as they have been read.
struct Preceding {
    /// All their blocks, and in the end those of the member.
    headers: HeaderRun,
    /// Their values and those of the global headers. `None` before the first extension.
    values: Option<Extensions>,
    count: u32,
    /// Length of their bodies, bytes.
    len: u64,
}

impl Chain {
    /// A chain from `offset` to `end`.
    pub(super) fn new(offset: u64, end: u64, nesting: Nesting) -> Self {
        Self { offset, end, globals: Extensions::default(), nesting }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Continues at `offset`, unless the chain is already past it.
    pub(super) fn skip_to(&mut self, offset: u64) {
        self.offset = self.offset.max(offset);
    }

    /// Whether there was a global header. A chain that starts later would not know of it.
    pub(super) fn has_globals(&self) -> bool {
        !self.globals.is_empty()
    }

    /// Steps to the next member and adds it to `members`.
    ///
    /// Fails with `Io` if the archive cannot be read. Damage is a `Step`, not an error.
    pub(super) fn step(&mut self, source: &mut dyn Source, members: &mut Members) -> Result<Step> {
        let start = self.offset;
        let mut offset = start;
        let mut preceding = Preceding::new(start);
        loop {
            let Some(block) = self.block(source, offset)? else {
                return Ok(if offset == start { Step::End } else { Step::Truncated(Vec::new()) });
            };
            let Some(header) = Header::parse(&block) else {
                return Ok(self.no_header(offset, &block));
            };
            preceding.headers.add(&block);
            let data = offset.saturating_add(BLOCK_LEN);
            let kind = match header.kind() {
                Type::Extension(kind) => {
                    match self.read_extension(header, kind, data, &mut preceding, source)? {
                        ControlFlow::Continue(next) => offset = next,
                        ControlFlow::Break(step) => return Ok(step),
                    }
                    continue;
                }
                Type::Member(kind) => kind,
            };
            let extensions = preceding.values.as_ref().unwrap_or(&self.globals);
            let mut path = Vec::new();
            match extensions.path() {
                Some(extended) => path.extend(extended),
                None => header.path(&mut path),
            }
            let headers = preceding.headers;
            let member = MemberHeader { header, kind, extensions, path, start, data, headers };
            let (step, next) = add_member(member, self.end, self.nesting, source, members)?;
            self.offset = next;
            return Ok(step);
        }
    }

    /// The step for the `block` at `offset`, which is not a header.
    fn no_header(&mut self, offset: u64, block: &Block) -> Step {
        if offset != self.offset {
            return self.damaged_at(offset, Error::corrupt("an extension without its member"));
        }
        if header::is_zero(block) { Step::Zeros } else { Step::Garbage }
    }

    /// Adds the extension with `header`, whose body is at `data`, to the `preceding` ones. Returns
    /// the offset of the next header, or a step if no member follows.
    fn read_extension(
        &mut self,
        header: Header<'_>,
        kind: ExtensionType,
        data: u64,
        preceding: &mut Preceding,
        source: &mut dyn Source,
    ) -> Result<ControlFlow<Step, u64>> {
        let len = match header.size() {
            Ok(len) => len,
            Err(error) => return Ok(ControlFlow::Break(self.damaged_at(data, error))),
        };
        let next = data.saturating_add(padded(len));
        if let Err(error) = preceding.count(len) {
            return Ok(ControlFlow::Break(self.damaged_at(next, error)));
        }
        let read_len = if kind == ExtensionType::PaxGlobal { len } else { padded(len) };
        let Some(body) = self.bytes(source, data, index(read_len))? else {
            return Ok(ControlFlow::Break(Step::Truncated(Vec::new())));
        };
        preceding.headers.add(body);
        let records = body.get(..index(len)).unwrap_or(body);
        let values = preceding.values.get_or_insert_with(|| self.globals.clone());
        match kind {
            // It replaces the records of an earlier one, as in GNU tar and bsdtar.
            ExtensionType::Pax => {
                values.replace_records(&self.globals);
                if let Err(error) = values.apply(records) {
                    return Ok(ControlFlow::Break(self.damaged_at(next, error)));
                }
            }
            // The name ends at its NUL. GNU tar and Python also ignore a size that is too small.
            ExtensionType::LongName => values.long_name = Some(header::until_nul(body).to_vec()),
            ExtensionType::LongLink => values.long_link = Some(header::until_nul(body).to_vec()),
            ExtensionType::PaxGlobal => {
                return Ok(ControlFlow::Break(self.apply_global(body, next)));
            }
        }
        Ok(ControlFlow::Continue(next))
    }

    /// Applies the records of a global header. It belongs to no member, so a guessed chain may
    /// start right after it, at `next`.
    fn apply_global(&mut self, body: &[u8], next: u64) -> Step {
        match self.globals.apply_global(body) {
            Ok(has_others) => {
                self.offset = next;
                let what = "global records other than owners and times";
                Step::Skipped(has_others.then(|| Skip { what: what.into(), path: None }))
            }
            Err(error) => self.damaged_at(next, error),
        }
    }

    /// The bytes at `offset`, or `None` if this archive ends before they do.
    fn bytes<'s>(
        &self,
        source: &'s mut dyn Source,
        offset: u64,
        len: usize,
    ) -> Result<Option<&'s [u8]>> {
        source::before(source, offset, len, self.end)
    }

    fn block(&self, source: &mut dyn Source, offset: u64) -> Result<Option<Block>> {
        Ok(self.bytes(source, offset, BLOCK)?.and_then(|bytes| bytes.first_chunk().copied()))
    }

    /// Reports damage, and continues at `next` or later.
    fn damaged_at(&mut self, next: u64, error: Error) -> Step {
        let start = self.offset;
        self.offset = next.max(start.saturating_add(BLOCK_LEN));
        let error = error.within("damaged header").with_detail(header_at(start));
        Step::Damaged { path: Vec::new(), error }
    }
}

impl Preceding {
    /// No extensions before the member whose first header is at `start`.
    fn new(start: u64) -> Self {
        Self { headers: HeaderRun::new(start), values: None, count: 0, len: 0 }
    }

    /// Counts an extension whose body has `len` bytes.
    fn count(&mut self, len: u64) -> Result<()> {
        if len > TAR_EXTENSION_MAX {
            let what = format!("an extension of {len} bytes, limit {TAR_EXTENSION_MAX}");
            return Err(Error::corrupt(what));
        }
        self.count = self.count.saturating_add(1);
        self.len = self.len.saturating_add(len);
        if self.count > TAR_EXTENSIONS_MAX || self.len > TAR_EXTENSION_MAX {
            return Err(Error::corrupt("too many extensions before one member"));
        }
        Ok(())
    }
}

/// What pixz appends to a tar that it compresses: a list of the members, which starts with this
/// magic (pixz.h: PIXZ_INDEX_MAGIC, little-endian).
const PIXZ_LIST: [u8; 8] = 0xdbae_14d6_2e32_4ca6_u64.to_le_bytes();

/// A chain of headers, and what to do where it breaks.
pub(super) struct Walk {
    pub(super) chain: Chain,
    start: u64,
    /// Whether the last step found an end mark.
    after_end_mark: bool,
}

impl Walk {
    pub(super) fn new(start: u64, end: u64, nesting: Nesting) -> Self {
        Self { chain: Chain::new(start, end, nesting), start, after_end_mark: false }
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
        let end = source.end().unwrap_or(self.chain.end).min(self.chain.end);
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
            let Some(block) = self.chain.block(source, at)? else {
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
            let Some(block) = self.chain.block(source, at)? else { break };
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
}

/// The error for a truncated archive whose last part is `what`.
fn cut_off(what: &str) -> Error {
    Error::corrupt(format!("cut off: {what} and everything after it is missing"))
}
