//! gzip: members from several tools, seek points, and cuts. `spool` tests a giant block.

use super::{check, check_reads, first_pass, open, run, sample, saved, store};
use crate::error::Kind;
use crate::formats::compressed::chunks::Chunks;
use crate::formats::compressed::format::Output;
use crate::formats::compressed::gzip::first_pass_within;
use crate::formats::compressed::{Container, SeekIndex};

#[test]
fn reads_all_data_of_a_gzip_file_cut_after_its_data() {
    let Some(member) = run("gzip -c", b"text") else { return };
    let twice = [&member[..], &member].concat();
    let thrice = [&twice[..], &member].concat();
    // In the trailer of the second member, and in the header of a third.
    let trailer = (1..8).map(|cut| &twice[..twice.len() - cut]);
    for encoded in trailer.chain((2..10).map(|kept| &thrice[..twice.len() + kept])) {
        let (bytes, error, seek_index) = first_pass(encoded);
        assert_eq!(bytes, b"texttext");
        assert_eq!(error.unwrap().kind(), Kind::Truncated);
        assert_eq!(seek_index.len(), 8);
        let decoded = open(encoded, seek_index, None);
        check_reads(&decoded, b"texttext", 1, 5);
    }
}

#[test]
fn reads_a_gzip_member_before_a_damaged_header() {
    let Some(member) = run("gzip -c", b"text") else { return };
    let mut twice = [&member[..], &member].concat();
    // Reserved flags.
    twice[member.len() + 3] = 0xff;
    let (bytes, error, seek_index) = first_pass(&twice);
    assert_eq!((&bytes[..], error.unwrap().kind()), (&b"text"[..], Kind::Corrupt));
    let decoded = open(&twice, seek_index, None);
    check_reads(&decoded, b"text", 1, 5);
}

#[test]
fn reads_gzip() {
    let data = sample(9 << 20, 1);
    for words in ["gzip -1 -c", "gzip -9 -c", "pigz -c", "pigz -i -b 128 -c", "bgzip -c"] {
        let seek_index = check(words, run(words, &data), &data);
        let Some(seek_index) = seek_index else { continue };
        let Chunks::Points(points) = &seek_index.chunks else { panic!("{words}: no points") };
        let starts: Vec<u64> = points.iter().map(|point| point.decoded).collect();
        let sizes = starts.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
        assert!(sizes.iter().all(|size| *size >= 768 << 10), "{words}: {sizes:?}");
        let small = sizes.iter().filter(|size| **size <= 1 << 20).count();
        assert!(small * 4 >= sizes.len() * 3, "{words}: {sizes:?}");
    }
    // Stored blocks, many members, a header with all fields, zeros at the end.
    let noise: Vec<u8> =
        sample(1 << 20, 2).iter().enumerate().map(|(i, b)| b ^ ((i * i) >> 7) as u8).collect();
    check("noise", run("gzip -1 -c", &noise), &noise);
    let mut members = Vec::new();
    for part in data.chunks(300_000) {
        members.extend(run("gzip -1 -c", part).unwrap());
    }
    members.extend([0; 1000]);
    check("members", Some(members), &data);
    let mut fields = vec![0x1f, 0x8b, 8, 2 | 4 | 8 | 16, 0, 0, 0, 0, 0, 3];
    fields.extend(b"\x05\0extraname\0comment\0");
    let sum = crc32fast::hash(&fields).to_le_bytes();
    fields.extend(&sum[..2]);
    fields.extend(&run("gzip -nc", &data).unwrap()[10..]);
    check("fields", Some(fields.clone()), &data);
    fields[12] ^= 1;
    assert!(first_pass(&fields).1.unwrap().to_string().contains("header's checksum"));
    for (name, fits) in [((64 << 10) - 1, true), (64 << 10, false)] {
        let mut long = vec![0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 3];
        long.extend(vec![b'n'; name]);
        long.extend([0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(first_pass(&long).1.is_none(), fits, "a name of {name} bytes");
    }
}

#[test]
fn thins_gzip_seek_points() {
    let data = sample(40 << 20, 3);
    let encoded = run("gzip -1 -c", &data).unwrap();
    let mut pass = first_pass_within("x", store(&encoded), 8);
    while !matches!(pass.next().unwrap(), Output::End) {}
    let chunks = pass.into_chunks(data.len() as u64);
    let Chunks::Points(points) = &chunks else { panic!("no points") };
    assert!((3..=8).contains(&points.len()), "{}", points.len());
    let len = data.len() as u64;
    let seek_index = SeekIndex { container: Container::Gzip, len, chunks };
    assert!(seek_index.largest_chunk() > 4 << 20);
    let again = saved(&seek_index, &encoded);
    let compressed = open(&encoded, again, None);
    check_reads(&compressed, &data, 2, 10);
}
