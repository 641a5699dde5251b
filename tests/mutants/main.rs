//! Mutants: archives damaged on purpose, of which every byte that is handed out must be right.
#[path = "../support/mod.rs"]
mod support;

mod damage;
mod facts;
mod field;
mod header;
mod herd;
mod image;
mod oracle;
mod outside;
mod random;
mod rules;
mod seeds;
mod supervisor;
mod table;
mod verdict;
mod worker;

use std::path::Path;
use std::process::Command;

use rules::Format;
use worker::{ORDER, Order};

/// Mutants of one format, where ARCHFS_MUTANTS does not say.
const MUTANTS: u64 = 20_000;

#[test]
#[ignore = "is what the tests here start in processes of its own"]
fn worker() {
    let order = std::env::var(ORDER).expect("an order");
    worker::work(&Order::of_text(&order));
}

#[test]
fn every_byte_of_a_squashfs_mutant_is_right_or_an_error() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("seeds")).unwrap();
    seeds::make_images(&folder.path().join("seeds"), &folder.path().join("work"));
    let program = folder.path().join("libsquashfs");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mutants/libsquashfs.c");
    support::run(Command::new("cc").args(["-O2", "-o"]).arg(&program).args([
        source,
        "-lsquashfs",
        "-l:liblzo2.so.2",
    ]));
    supervisor::run(Format::Squashfs, folder.path(), program.to_str().unwrap());
}

#[test]
fn every_byte_of_a_tar_mutant_is_right_or_an_error() {
    let folder = folder();
    let within = |name: &str| {
        let place = folder.path().join(name);
        std::fs::create_dir(&place).unwrap();
        place
    };
    seeds::make_tars(&within("seeds"), &within("inner"), &folder.path().join("work"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mutants/tarfile_facts.py");
    supervisor::run(Format::Tar, folder.path(), &format!("python3 {script}"));
}

fn folder() -> tempfile::TempDir {
    let builder = |place: &Path| {
        tempfile::Builder::new().prefix("archfs-mutants-").tempdir_in(place).unwrap()
    };
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { builder(memory) } else { builder(&std::env::temp_dir()) }
}
