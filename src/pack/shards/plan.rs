//! The order of samples, and where one shard ends and the next begins.
//!
//! Invariants: the same samples, seed and size give the same plan in every version. A shard does
//! not exceed its maximum size unless it holds only one sample.
//!
//! The shuffle is Fisher-Yates from the last index down to 1: index `i` is swapped with a number
//! below `i + 1`. Numbers come from SplitMix64 (Steele, Lea, Flood 2014; its initial state is the
//! seed). Each is brought into range as the upper half of a 128-bit product (Lemire 2019, without
//! the rejection: its bias is below 2^-32 for fewer than 2^32 samples).

use std::ops::Range;

/// The numbers from 0 up to `count`, shuffled.
pub(super) fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    let mut state = seed;
    for last in (1..order.len()).rev() {
        let below = last as u128 + 1;
        let pick = (u128::from(split_mix(&mut state)) * below) >> 64;
        order.swap(last, pick as usize);
    }
    order
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Splits samples of these sizes into shards of at most `max_bytes` bytes, as computed by
/// `finished`.
pub(super) fn cut(
    sizes: impl Iterator<Item = u64>,
    max_bytes: u64,
    finished: impl Fn(u64) -> u64,
) -> Vec<Range<usize>> {
    let mut shards: Vec<Range<usize>> = Vec::new();
    let mut filled = 0_u64;
    for (nth, size) in sizes.enumerate() {
        match shards.last_mut() {
            Some(last) if finished(filled.saturating_add(size)) <= max_bytes => {
                last.end = nth + 1;
                filled += size;
            }
            _ => {
                shards.push(nth..nth + 1);
                filled = size;
            }
        }
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        // The first outputs of Vigna's splitmix64.c from the seed 1234567.
        let mut state = 1_234_567;
        let found: Vec<_> = (0..3).map(|_| split_mix(&mut state)).collect();
        let published =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(found, published);
    }

    #[test]
    fn a_seed_gives_one_order_and_another_seed_another() {
        let order = shuffled(1000, 42);
        assert_eq!(order, shuffled(1000, 42));
        assert_ne!(order, shuffled(1000, 43));
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        assert!(shuffled(0, 1).is_empty());
        assert_eq!(shuffled(1, 1), [0]);
    }

    #[test]
    fn each_position_is_equally_likely() {
        let mut found = [0_u32; 5];
        for seed in 0..10_000 {
            found[shuffled(5, seed).iter().position(|&nth| nth == 0).unwrap()] += 1;
        }
        assert!(found.iter().all(|count| (1850..2150).contains(count)), "{found:?}");
    }

    #[test]
    fn shards_are_full_but_not_too_full() {
        let cuts = |sizes: &[u64], max_bytes| cut(sizes.iter().copied(), max_bytes, |len| len + 1);
        assert_eq!(cuts(&[4, 5, 1, 20, 9], 10), [0..2, 2..3, 3..4, 4..5]);
        assert_eq!(cuts(&[4, 6], 10), [0..1, 1..2]);
        assert!(cuts(&[], 10).is_empty());
    }
}
