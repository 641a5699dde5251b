//! Damage in all containers: cuts, flipped bytes, hostile seek points.
//!
//! Bytes before the damage are correct. Reading past it is an error.

use super::{check_reads, first_pass, first_pass_and_spool, open, recognized, run, sample, saved};
use crate::formats::bytes::Reader;
use crate::formats::compressed::chunks::{Chunks, Extent};
use crate::formats::compressed::{Container, SeekIndex};
use crate::storage::Storage;

/// A file of several chunks for each container that has checksums.
fn checked_files(data: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let tools = [
        "gzip -1 -c",
        "bzip2 -1 -c",
        "xz -0 --block-size=300KiB -c",
        "zstd -1 -c",
        "lz4 -B4 -c",
        "lz4 -B4 -BD -BX -c",
    ];
    tools.iter().filter_map(|tool| Some((*tool, run(tool, data)?))).collect()
}

#[test]
fn serves_the_data_before_a_cut() {
    let data = sample(2 << 20, 12);
    for (tool, encoded) in checked_files(&data) {
        for tenth in 1..10 {
            let cut = &encoded[..encoded.len() * tenth / 10];
            let (bytes, error, (seek_index, spool)) = first_pass_and_spool(cut);
            let error = error.unwrap_or_else(|| panic!("{tool} cut at {tenth}/10: no error"));
            assert!(error.is_damage(), "{tool}: {error}");
            assert!(data.starts_with(&bytes), "{tool} cut at {tenth}/10");
            // All bytes but those of the last chunk (a block of bzip2 -1 or xz, a whole zstd file).
            let part = data.len() * tenth / 10;
            let lost = part - part.min(seek_index.len() as usize);
            assert!(tool.starts_with("zstd") || lost < 900_000, "{tool} {tenth}: {lost} lost");
            let again = saved(&seek_index, cut);
            for (seek_index, spool) in [(seek_index, spool), (again, None)] {
                let compressed = open(cut, seek_index, spool);
                let verified_len = &bytes[..compressed.len() as usize];
                if !verified_len.is_empty() {
                    check_reads(&compressed, verified_len, 1, 10);
                }
            }
        }
        for end in [1, 2, 4, 8] {
            let (bytes, error, _) = first_pass(&encoded[..encoded.len() - end]);
            assert!(error.is_some() && data.starts_with(&bytes), "{tool} without {end} bytes");
        }
    }
}

#[test]
fn detects_a_flipped_byte_and_returns_no_wrong_data() {
    let data = sample(600_000, 13);
    for (tool, encoded) in checked_files(&data) {
        let mut offsets: Vec<usize> = (0..40).map(|n| encoded.len() * n / 40 + n).collect();
        offsets.extend((1..30).chain(encoded.len() - 30..encoded.len()));
        for offset in offsets {
            let mut bad = encoded.clone();
            bad[offset] ^= 1 << (offset % 8);
            if !matches!(recognized(&bad), Ok(Some(_))) {
                continue;
            }
            let (bytes, error, seek_index) = first_pass(&bad);
            saved(&seek_index, &bad);
            let verified_len = seek_index.len() as usize;
            assert!(
                bytes[..verified_len] == data[..verified_len],
                "{tool}: byte {offset} flipped, wrong bytes"
            );
            assert!(error.is_some() || bytes == data, "{tool}: byte {offset} flipped, unnoticed");
        }
    }
}

#[test]
fn rejects_hostile_seek_points_or_survives_them() {
    let data = sample(5 << 18, 14);
    for (tool, encoded) in checked_files(&data) {
        let (_, _, seek_index) = first_pass(&encoded);
        let mut good = Vec::new();
        seek_index.write(&mut good);
        let parse =
            |bytes: &[u8]| SeekIndex::parse(&mut Reader::new("index", bytes), encoded.len() as u64);
        for len in (0..good.len()).step_by(good.len() / 200 + 1) {
            assert!(parse(&good[..len]).is_err(), "{tool}: {len} bytes");
        }
        let offsets =
            (0..120.min(good.len())).chain((120..good.len()).step_by(good.len() / 20 + 1));
        for offset in offsets {
            for flip in [1, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[offset] ^= flip;
                let Ok(seek_index) = parse(&bad) else { continue };
                let len = seek_index.len();
                // Other tests cover spooled data. Decoding it for each flip would take too long.
                if matches!(seek_index.chunks, Chunks::Spooled) {
                    continue;
                }
                let compressed = open(&encoded, seek_index, None);
                let _ = compressed.read_exact_at(&mut [0; 10], len.saturating_sub(10));
                let _ = compressed.read_exact_at(&mut [0; 10], len / 2);
            }
        }
    }
    let mut other = Vec::new();
    let len = (64 << 20) + 1;
    for (len, fits) in [(len - 1, true), (len, false)] {
        let extent = Extent { decoded: 0, start: 0, end: 9, detail: 0 };
        let chunks = Chunks::Extents(vec![extent]);
        other.clear();
        SeekIndex { container: Container::Zstd, len, chunks }.write(&mut other);
        assert_eq!(SeekIndex::parse(&mut Reader::new("index", &other), 9).is_ok(), fits);
        assert!(SeekIndex::parse(&mut Reader::new("index", &other), 8).is_err());
    }
}
