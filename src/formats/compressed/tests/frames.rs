//! lz4 and zstd: frames with each option of the tools, also the legacy format, and seek tables.
//!
//! A seek table is used if it matches the file. If it does not, all data is still found. `spool`
//! tests frames that are too large for a chunk.

use super::{check, count, first_pass, run, run_on_file, sample};

#[test]
fn reads_lz4() {
    let data = sample(9 << 20, 8);
    for words in [
        "lz4 -B4 -c",
        "lz4 -B7 -c",
        "lz4 -B5 -BX -c",
        "lz4 -B4 -BD -c",
        "lz4 -B7 -BD -BX -c",
        "lz4 -l -c",
        "lz4 --no-frame-crc -c",
        "lz4 -9 -c",
    ] {
        let seek_index = check(words, run(words, &data), &data);
        let min_count = if words.contains("BD") || words.contains("-l") { 1 } else { 3 };
        assert!(seek_index.is_none_or(|seek_index| count(&seek_index) >= min_count), "{words}");
    }
    for words in ["lz4 --content-size -c", "lz4 -BD --content-size -c"] {
        check(words, run_on_file(words, &data), &data);
    }
    let mut frames = vec![0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    for (number, part) in data.chunks(1_000_000).enumerate() {
        frames.extend(run(["lz4 -c", "lz4 -l -c", "lz4 -BD -c"][number % 3], part).unwrap());
        frames.extend(run("lz4 -c", b"").unwrap());
    }
    check("frames", Some([&frames[11..], &frames, &[0; 99]].concat()), &data.repeat(2));
    let noise: Vec<u8> =
        sample(1 << 20, 2).iter().enumerate().map(|(i, b)| b ^ ((i * i) >> 7) as u8).collect();
    // A block may be as large as its frame declares, and no larger.
    for (len, fits) in [(64 << 10, true), ((64 << 10) + 1, false)] {
        let mut frame = vec![0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82];
        frame.extend((len as u32 | 1 << 31).to_le_bytes());
        frame.extend(&data[..len]);
        frame.extend([0; 4]);
        let (bytes, error, _) = first_pass(&frame);
        assert_eq!((error.is_none(), bytes == data[..len]), (fits, fits), "{error:?}");
    }
    check("stored", run("lz4 -B4 -BX -c", &noise), &noise);
}

#[test]
fn reads_zstd() {
    let data = sample(9 << 20, 7);
    for words in
        ["zstd -1 -c", "zstd -19 --single-thread --no-check -c", "pzstd -c", "zstd -1 --long=27 -c"]
    {
        check(words, run(words, &data), &data);
    }
    check("content size", run_on_file("zstd -1 -c", &data), &data);
    let (mut frames, mut entries, mut seekables) = (Vec::new(), Vec::new(), Vec::new());
    for (number, part) in data.chunks(70_000).enumerate() {
        // Every second frame by a stream encoder, which does not declare the size.
        let frame = match number % 2 {
            0 => zstd::bulk::compress(part, 1).unwrap(),
            _ => zstd::stream::encode_all(part, 1).unwrap(),
        };
        entries.extend((frame.len() as u32).to_le_bytes());
        entries.extend((part.len() as u32).to_le_bytes());
        seekables.extend(&frame);
        frames.extend([0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
        frames.extend(frame);
    }
    check("skippable frames", Some(frames), &data);
    let seek_index = check("frames", Some(seekables.clone()), &data).unwrap();
    assert!((9..=20).contains(&count(&seek_index)), "{}", count(&seek_index));
    let table = |entries: &[u8]| {
        let mut table = 0x184d_2a5e_u32.to_le_bytes().to_vec();
        table.extend((entries.len() as u32 + 9).to_le_bytes());
        table.extend(entries);
        table.extend((entries.len() as u32 / 8).to_le_bytes());
        table.push(0);
        table.extend(0x8f92_eab1_u32.to_le_bytes());
        table
    };
    let good = [&seekables[..], &table(&entries)].concat();
    let seek_index = check("seek table", Some(good), &data).unwrap();
    assert!((9..=11).contains(&count(&seek_index)), "{}", count(&seek_index));
    // A table that does not match the file is ignored. Wrong sizes in a table are detected.
    let short = [&seekables[..], &table(&entries[8..])].concat();
    check("wrong seek table", Some(short), &data);
    entries[4] ^= 1;
    let lying = [&seekables[..], &table(&entries)].concat();
    assert!(first_pass(&lying).1.is_some());
}
