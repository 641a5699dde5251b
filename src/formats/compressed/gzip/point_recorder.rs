//! The seek points of a gzip file, recorded during a pass.
//!
//! Invariant: thinning makes no chunk of more than `CHUNK_MAX`.

use super::super::point::{CompressedWindow, Point};
use crate::error::Result;
use crate::formats::limits::{CHUNK_MAX, GZIP_SPACING, GZIP_SPACING_MAX};

/// Records seek points.
pub(super) struct PointRecorder {
    points: Vec<Point>,
    /// Least distance of two points, decoded bytes.
    spacing: u64,
    /// Number of points above which they are thinned.
    points_max: usize,
}

impl PointRecorder {
    pub(super) fn new(points_max: usize) -> Self {
        Self { points: Vec::new(), spacing: GZIP_SPACING, points_max }
    }

    /// Decoded bytes from the last point to `decoded`.
    pub(super) fn distance(&self, decoded: u64) -> u64 {
        decoded.saturating_sub(self.points.last().map_or(0, |point| point.decoded))
    }

    /// Records the header of a member at `bit`, if it is far enough from the last point.
    pub(super) fn on_member_start(&mut self, decoded: u64, bit: u64) {
        if self.is_due(decoded) {
            self.record(Point { decoded, bit, window: None });
        }
    }

    /// Records a block at `bit`, if it is far enough from the last point.
    ///
    /// A point without a window means a member header. A block before the first byte of its member
    /// is not recorded, because its window would be empty too.
    pub(super) fn on_block_start(&mut self, decoded: u64, bit: u64, window: &[u8]) -> Result<()> {
        if self.is_due(decoded) && !window.is_empty() {
            let window = CompressedWindow::compress(window)?;
            self.record(Point { decoded, bit, window });
        }
        Ok(())
    }

    /// The points before `len`, the decoded bytes that can be read. A point at `len` has no chunk.
    pub(super) fn into_points(mut self, len: u64) -> Vec<Point> {
        self.points.retain(|point| point.decoded < len);
        self.points
    }

    fn is_due(&self, decoded: u64) -> bool {
        self.points.is_empty() || self.distance(decoded) >= self.spacing
    }

    fn record(&mut self, point: Point) {
        self.points.push(point);
        if self.points.len() > self.points_max && self.spacing < GZIP_SPACING_MAX {
            self.spacing = self.spacing.saturating_mul(2);
            self.points = thin(std::mem::take(&mut self.points), self.spacing);
        }
    }
}

/// The points that are at least `spacing` after the last one kept. The first and the last stay.
fn thin(points: Vec<Point>, spacing: u64) -> Vec<Point> {
    let gap = |from: &Point, to: &Point| to.decoded.saturating_sub(from.decoded);
    let mut kept: Vec<Point> = Vec::new();
    let mut points = points.into_iter().peekable();
    while let Some(point) = points.next() {
        let stays = match (kept.last(), points.peek()) {
            // Without the point, the chunk from `last` would reach to `next`.
            (Some(last), Some(next)) => gap(last, &point) >= spacing || gap(last, next) > CHUNK_MAX,
            _ => true,
        };
        if stays {
            kept.push(point);
        }
    }
    kept.shrink_to_fit();
    kept
}
