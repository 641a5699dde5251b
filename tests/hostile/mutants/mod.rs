//! Mutants: for an archive damaged on purpose, archfs returns correct bytes or an error.
//!
//! A mutant is made of a sound archive (`seeds`) by its number (`population`). It is either
//! damaged as by a disk or a copy (`damage`), or one field of a table or header is edited and the
//! rest kept valid (`image`, `header`, `archive`). A `worker` opens and reads it under a limit of address
//! space. Its `facts`
//! must match another reader (`oracle`: libsquashfs, Python's tarfile and zipfile) or be errors; `rules` lists
//! the allowed differences. If tarfile finds a member that archfs does not show, archfs must report
//! it.
//!
//! ARCHFS_MUTANTS sets the number for each format (6,000), ARCHFS_SEED chooses others.
//! ARCHFS_MUTANT=squashfs:4711 runs one again, prints what was refused, and keeps it in target/tmp.

mod archive;
mod damage;
mod facts;
mod field;
mod header;
mod image;
mod layout;
mod numbers;
mod oracle;
mod outside;
mod population;
mod random;
mod rules;
mod seeds;
mod supervisor;
mod table;
mod verdict;
mod worker;

use std::path::Path;
use std::process::Command;

use crate::support;
use crate::support::skip::skip;
use rules::Format;
use worker::{ORDER, Order};

/// Mutants of each format if ARCHFS_MUTANTS is not set.
const MUTANTS: u64 = 6000;

#[test]
#[ignore = "is what the tests here start in processes of its own"]
fn worker() {
    let order = std::env::var(ORDER).expect("an order");
    worker::work(&Order::of_text(&order));
}

#[test]
fn squashfs_mutants_give_correct_bytes_or_errors() {
    if !can_compare("/usr/include/sqfs/super.h") {
        return;
    }
    let directory = directory();
    std::fs::create_dir(directory.path().join("seeds")).unwrap();
    seeds::make_images(&directory.path().join("seeds"), &directory.path().join("work"));
    let program = directory.path().join("libsquashfs");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/mutants/libsquashfs.c");
    support::run(Command::new("cc").args(["-O2", "-o"]).arg(&program).args([
        source,
        "-lsquashfs",
        "-l:liblzo2.so.2",
    ]));
    supervisor::run(Format::Squashfs, directory.path(), program.to_str().unwrap());
}

#[test]
fn tar_mutants_give_correct_bytes_or_errors() {
    if !can_compare("/usr/bin/lz4") {
        return;
    }
    let directory = directory();
    let within = |name: &str| {
        let parent = directory.path().join(name);
        std::fs::create_dir(&parent).unwrap();
        parent
    };
    seeds::make_tars(&within("seeds"), &within("inner"), &directory.path().join("work"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/mutants/tarfile_facts.py");
    supervisor::run(Format::Tar, directory.path(), &format!("python3 {script}"));
}

#[test]
fn zip_mutants_give_correct_bytes_or_errors() {
    if !can_compare("/usr/bin/zip") {
        return;
    }
    let directory = directory();
    let seeds = directory.path().join("seeds");
    std::fs::create_dir(&seeds).unwrap();
    seeds::make_zips(&seeds, &directory.path().join("work"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/mutants/zipfile_facts.py");
    supervisor::run(Format::Zip, directory.path(), &format!("python3 {script}"));
}

/// Whether the test can run: making the trees needs root, and `needed` must be installed. CI has
/// both.
fn can_compare(needed: &str) -> bool {
    if rustix::process::geteuid().is_root() && Path::new(needed).exists() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "CI must compare: needs root and {needed}");
    skip(&format!("making devices and comparing needs root and {needed}"));
    false
}

/// A work directory in memory if possible, because mutants are written one after the other.
fn directory() -> tempfile::TempDir {
    let builder = |parent: &Path| {
        tempfile::Builder::new().prefix("archfs-mutants-").tempdir_in(parent).unwrap()
    };
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { builder(memory) } else { builder(&std::env::temp_dir()) }
}
