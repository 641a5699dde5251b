//! What turns promise, whatever the order in which threads come (`sync::model` has the essay).
//!
//! Owns the models of room and of order. Invariant: who needs more than all the room takes part in
//! each.

use super::*;
use crate::sync::model::{check, check_all};
use crate::sync::{Arc, AtomicU64, Ordering, thread};

const ROOM: u64 = 100;

/// Has a turn of `bytes`, with others let in meanwhile; tells who else had one through `taken`.
fn decode(turns: &Turns, taken: &AtomicU64, bytes: u64) {
    let turn = turns.wait(bytes);
    let others = taken.fetch_add(bytes, Ordering::Relaxed);
    assert!(others == 0 || others + bytes <= ROOM, "{bytes} bytes beside {others}");
    taken.fetch_sub(bytes, Ordering::Relaxed);
    drop(turn);
}

fn all_decode(sizes: &'static [u64]) {
    let (turns, taken) = (Arc::new(Turns::new(ROOM)), Arc::new(AtomicU64::new(0)));
    let waits = |bytes: &u64| {
        let (turns, taken, bytes) = (Arc::clone(&turns), Arc::clone(&taken), *bytes);
        thread::spawn(move || decode(&turns, &taken, bytes))
    };
    let threads: Vec<_> = sizes.iter().map(waits).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(turns.now(10 * ROOM).is_some(), "all room was given back, and nobody is waited for");
}

#[test]
fn everybody_gets_a_turn_within_the_room_or_alone() {
    check(|| all_decode(&[60, 300, 40, 50, 100]));
}

#[test]
fn two_get_their_turns_in_every_order_there_is() {
    check_all(500_000, || all_decode(&[60, 300]));
}

#[test]
fn turns_are_had_in_the_order_in_which_they_were_asked_for() {
    check(|| {
        let turns = Arc::new(Turns::new(ROOM));
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = turns.wait(60);
        let mut threads = Vec::new();
        // Those who would fit come behind one who does not.
        for (count, bytes) in [(1, 300), (2, 10), (3, 20)] {
            let (asked, order) = (Arc::clone(&turns), Arc::clone(&order));
            threads.push(thread::spawn(move || {
                let turn = asked.wait(bytes);
                order.lock().push(bytes);
                drop(turn);
            }));
            let waiting = |state: &State| state.next.wrapping_sub(state.serving);
            while waiting(&turns.state.lock()) < count {
                thread::yield_now();
            }
        }
        assert!(order.lock().is_empty());
        assert!(turns.now(10).is_none(), "work that can wait overtakes nobody");
        drop(first);
        for thread in threads {
            thread.join().unwrap();
        }
        let order = order.lock();
        assert_eq!(order[0], 300, "nobody overtook it");
        // The other two may have theirs at once.
        assert_eq!(order.len(), 3);
    });
}

#[test]
fn who_fits_beside_others_does_not_wait_for_their_end() {
    check(|| {
        let turns = Arc::new(Turns::new(ROOM));
        let with_turn = Arc::new((Mutex::new(0), Condvar::new()));
        let first = turns.wait(60);
        let waits = |bytes| {
            let (turns, with_turn) = (Arc::clone(&turns), Arc::clone(&with_turn));
            thread::spawn(move || {
                let _turn = turns.wait(bytes);
                // Kept until the other has one, too.
                let (count, changed) = &*with_turn;
                let mut count = count.lock();
                *count += 1;
                changed.notify_all();
                while *count < 2 {
                    changed.wait(&mut count);
                }
            })
        };
        let threads = [waits(50), waits(50)];
        drop(first);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn work_that_can_wait_never_keeps_others_from_their_turns() {
    check(|| {
        let turns = Arc::new(Turns::new(ROOM));
        let ahead = |bytes| {
            let turns = Arc::clone(&turns);
            thread::spawn(move || drop(turns.now(bytes)))
        };
        let (first, second) = (ahead(90), ahead(40));
        drop(turns.wait(50));
        drop(turns.wait(500));
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(turns.state.lock().taken, 0);
    });
}
