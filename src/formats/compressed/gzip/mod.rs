//! Seek points of gzip files: how a format without any gets them.
//!
//! Owns which points are kept and what decoding a chunk from one takes; leaves members and blocks
//! to `member`. Invariant: the bytes from a point up to the next do not depend on anything else.
//!
//! The problem. DEFLATE copies from the last 32 KiB it decoded, and its blocks start at any bit, so
//! to read the last byte of a gzip file one decodes all the others. Nothing in the file says where
//! a block starts.
//!
//! The idea is that of zran.c, an example that comes with zlib. The file must be decoded once in
//! any case, to find what is in it. Between two blocks a decoder has no state but its 32 KiB:
//! whoever knows the bit where the block starts and has those 32 KiB goes on from there. So at the
//! first block boundary 3/4 MiB or more after the last point another is kept: bit, offset, window.
//! A chunk is what lies between two points, mostly less than a MiB, since a block is some 50 to 400
//! KiB. A member starts with an empty window, so a point there has none.
//!
//! The cost. Windows are kept packed by zstd, at some 5 to 20 KiB each: 1 to 2 % of the decoded
//! bytes, which for a large file is more than one likes. So from 8192 points (6 GiB) on every
//! second is dropped and the spacing doubled, up to 24 MiB, which is what a random read of a file
//! of 192 GiB decodes. Packing a window takes some 0.1 ms, a fortieth of the time it takes to
//! decode 3/4 MiB. The first pass runs on one thread: where blocks start is known only by whoever
//! has decoded up to there.

mod member;

use member::{Members, Paused};

use super::buffers::Buffers;
use super::cursor::Cursor;
use super::first_pass::Found;
use super::seek_index::{Point, Window};
use crate::codecs::{Codec, zstd_pack};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::formats::limits::{
    GIANT_CHUNK_MAX, GZIP_POINTS_MAX, GZIP_SPACING, GZIP_SPACING_MAX, GZIP_WINDOW,
};
use crate::storage::{Storage, Window as Part};
use crate::sync::Arc;

/// What the file is read in, bytes.
const STRIDE: usize = 256 << 10;

/// What a decoder may want to see behind the last bit that it needs, bytes.
const AHEAD: u64 = 64;

/// What is decoded between two deliveries, bytes.
const PIECE: usize = 256 << 10;

/// The first pass over a gzip file.
pub(super) struct PointFinder {
    members: Members,
    points: Vec<Point>,
    /// Decoded bytes between points, at least.
    spacing: u64,
    /// Points above which they are thinned out; none are kept where it is zero.
    most: usize,
    /// The damage that was met, until what came before it is delivered.
    damage: Option<Error>,
    ended: bool,
}

impl PointFinder {
    pub(super) fn new(name: &str, storage: Arc<dyn Storage>) -> Self {
        Self::keeping(name, storage, GZIP_POINTS_MAX)
    }

    /// A pass that keeps no points, and so takes blocks of any size.
    pub(super) fn forward(name: &str, storage: Arc<dyn Storage>) -> Self {
        Self::keeping(name, storage, 0)
    }

    /// A pass that thins its points out from `most` on.
    pub(super) fn keeping(name: &str, storage: Arc<dyn Storage>, most: usize) -> Self {
        let buffer = PIECE.saturating_add(GZIP_WINDOW);
        Self {
            members: Members::new(Cursor::new(storage, 0, STRIDE), vec![0; buffer]).warning(name),
            points: Vec::new(),
            spacing: GZIP_SPACING,
            most,
            damage: None,
            ended: false,
        }
    }

    /// Compressed bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.members.position()
    }

    /// Where something begins that is no member, after the last one.
    pub(super) fn garbage(&self) -> Option<u64> {
        self.members.garbage()
    }

    /// Decoded bytes that are right for all that is known, after damage of the kind `damage`.
    pub(super) fn verified_len(&self, damage: Kind) -> u64 {
        self.members.verified_len(damage)
    }

    pub(super) fn next(&mut self) -> Result<Found> {
        while self.damage.is_none() && !self.ended && !self.members.is_full() {
            match self.members.step() {
                Ok(Paused::Full) => {}
                Ok(Paused::Boundary { bit, member }) => self.consider(bit, member)?,
                Ok(Paused::End) => self.ended = true,
                Err(error) => self.damage = Some(error),
            }
            let last = self.points.last().map_or(0, |point| point.decoded);
            if self.most > 0 && self.members.decoded().saturating_sub(last) > GIANT_CHUNK_MAX {
                return Ok(Found::Giant);
            }
        }
        let piece = self.members.take();
        if !piece.is_empty() {
            return Ok(Found::Piece(piece));
        }
        self.damage.take().map_or(Ok(Found::End), |error| {
            self.ended = true;
            Err(error)
        })
    }

    /// The points, without one at the very end.
    pub(super) fn into_points(mut self, len: u64) -> Vec<Point> {
        self.points.retain(|point| point.decoded < len);
        self.points
    }

    /// Keeps a point here, if the last is far enough away.
    fn consider(&mut self, bit: u64, member: bool) -> Result<()> {
        let decoded = self.members.decoded();
        let due = match self.points.last() {
            None => true,
            Some(last) => decoded.saturating_sub(last.decoded) >= self.spacing,
        };
        let before = self.members.window();
        // At the start of a member's data a block other than its first has no window either; what
        // tells them apart is not kept, so such a block is no point.
        if self.most == 0 || !due || (!member && before.is_empty()) {
            return Ok(());
        }
        let window = match member {
            true => None,
            false => Window::pack(before)?,
        };
        self.points.push(Point { decoded, bit, window });
        if self.points.len() > self.most && self.spacing < GZIP_SPACING_MAX {
            self.spacing = self.spacing.saturating_mul(2);
            thin(&mut self.points, self.spacing);
        }
        Ok(())
    }
}

/// Drops points until they are `spacing` apart or dropping one would make a giant chunk. The first
/// and the last stay.
fn thin(points: &mut Vec<Point>, spacing: u64) {
    let starts: Vec<u64> = points.iter().map(|point| point.decoded).collect();
    let mut nexts = starts.into_iter().skip(1);
    let mut kept: Option<u64> = None;
    points.retain(|point| {
        let next = nexts.next();
        let stays = match (kept, next) {
            (Some(kept), Some(next)) => {
                point.decoded.saturating_sub(kept) >= spacing
                    || next.saturating_sub(kept) > GIANT_CHUNK_MAX
            }
            _ => true,
        };
        if stays {
            kept = Some(point.decoded);
        }
        stays
    });
    points.shrink_to_fit();
}

impl Window {
    fn pack(bytes: &[u8]) -> Result<Option<Self>> {
        match u16::try_from(bytes.len()) {
            Ok(len) if len > 0 => Ok(Some(Self { len, packed: zstd_pack(bytes)?.into() })),
            _ => Ok(None),
        }
    }

    fn unpack(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::from(self.len)];
        match Codec::Zstd.decode(&self.packed, &mut bytes)? {
            len if len == bytes.len() => Ok(bytes),
            _ => Err(Error::corrupt("the window of a seek point is cut short")),
        }
    }
}

/// Memory that decoding a chunk of `len` bytes takes, bytes: the chunk behind its window, the
/// packed and the unpacked window, what is read at once, and the decoder.
pub(super) fn cost(len: u64) -> u64 {
    len.saturating_add(length(STRIDE)).saturating_add(length(GZIP_WINDOW).saturating_mul(4))
}

/// Decodes the `len` bytes from `point` on, which take what lies before bit `end` of the file.
pub(super) fn decode(
    storage: &Arc<dyn Storage>,
    point: &Point,
    end: Option<u64>,
    len: u64,
    buffers: &Buffers,
) -> Result<Vec<u8>> {
    let window = point.window.as_ref().map_or(Ok(Vec::new()), Window::unpack)?;
    let size = window.len().saturating_add(index(len));
    // Not past it: where much fits into few bytes, a stride would read those of many chunks.
    let end = end.map_or(u64::MAX, |bit| bit.div_ceil(8).saturating_add(AHEAD));
    let part = Part::new(Arc::clone(storage), 0)?.cut(end.min(storage.len()))?;
    let cursor = Cursor::new(Arc::new(part), point.bit >> 3, STRIDE);
    let mut members = match &point.window {
        None => Members::new(cursor, buffers.take(size)),
        Some(_) => Members::resume(cursor, point.bit, &window, buffers.take(size))?,
    };
    while !members.is_full() {
        match members.step() {
            Ok(Paused::End) => break,
            Ok(_) => {}
            // The damage is behind these bytes: the file was cut in the trailer, or something is
            // wrong with the header of the next member.
            Err(error) if error.kind() == Kind::Truncated && members.is_full() => break,
            Err(_) if members.is_full_before_header() => break,
            Err(error) => return Err(error),
        }
    }
    let bytes = members.into_rest();
    match length(bytes.len()) == len {
        true => Ok(bytes),
        false => Err(Error::corrupt(format!(
            "{len} bytes wanted from bit {:#x} on, {} are there",
            point.bit,
            bytes.len()
        ))),
    }
}
