//! lz4: output of the lz4 tool with each of its options, also the legacy format.
//!
//! `spool` tests frames of linked blocks over 64 MiB.

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
