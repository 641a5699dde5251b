//! Damaged archives, attackers, failing storage, scarce resources and crashes: the right bytes or an
//! error, and nothing is left.

#[path = "../support/mod.rs"]
mod support;

mod bad_archives;
mod checksums;
mod compressed_tar_damage;
mod faults;
mod killing;
mod mutants;
mod panics;
mod permissions;
mod scarce;
mod verify;
