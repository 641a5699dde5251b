//! Where worlds begin, and what is tried in them.

use super::super::search::explore;
use super::{At, Fault, World};

/// Where the worlds begin: nothing there, a mount that a script holds, one whose daemon is dead.
fn beginnings(kills: u8) -> [World; 3] {
    [
        World::new(2, kills).with_collector(),
        World::new(2, kills).with_mount(At::Serves),
        World::new(2, kills).with_mount(At::Killed).with_collector(),
    ]
}

#[test]
fn one_mounts_all_share_none_waits_for_ever_and_nothing_is_left_whoever_is_killed() {
    let states =
        beginnings(1).map(|world| explore(world).unwrap_or_else(|story| panic!("{story}")));
    println!("{states:?} states");
}

#[test]
fn each_fault_that_is_put_in_is_found() {
    for (fault, kills, words) in [
        (Fault::WaitsWithTheLock, 0, "nobody comes to the end"),
        (Fault::RecordGoesFirst, 0, "removes the socket"),
        (Fault::GivesWhileItEnds, 0, "which has no mount"),
        (Fault::LaunchesWithoutLock, 0, "mounts over"),
        (Fault::TakesAnyLock, 0, "the lock"),
        (Fault::ForgetsBlindly, 0, "removes the"),
        (Fault::SaysReadyFirst, 0, "which has no mount"),
        (Fault::CollectsByAnOldLook, 0, "removes the socket"),
    ] {
        let outcomes = beginnings(kills).map(|world| explore(world.with_fault(fault)));
        let stories: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
        let is_found = stories.iter().any(|story| story.contains(words));
        assert!(is_found, "{fault:?} is not found: {stories:?}");
    }
}
