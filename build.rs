//! Builds the library of `run --direct` (src/direct/library.c), which the program contains.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const SOURCE: &str = "src/direct/library.c";

/// The library needs no C library, so that programs of any C library load it. `library.c` explains
/// the flags.
const FLAGS: [&str; 17] = [
    "-std=gnu11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-g0",
    "-s",
    "-ffreestanding",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-stack-protector",
    "-fasynchronous-unwind-tables",
    "-nostdlib",
    "-shared",
    "-Wl,-z,defs",
    "-Wl,-z,now",
    "-Wl,-z,noseparate-code",
    "-Wl,--hash-style=both",
];

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed=build.rs");
    let target = PathBuf::from(variable("OUT_DIR")).join("direct.so");
    // Elsewhere `run --direct` says that it has no effect.
    let is_supported =
        ["x86_64", "aarch64"].map(Into::into).contains(&variable("CARGO_CFG_TARGET_ARCH"))
            && variable("CARGO_CFG_TARGET_ENDIAN") == "little"
            && variable("CARGO_CFG_TARGET_POINTER_WIDTH") == "64";
    match is_supported {
        true => compile(&target),
        false => fs::write(&target, "").expect("the directory of cargo is writable"),
    }
}

fn compile(target: &Path) {
    let compiler = cc::Build::new().get_compiler();
    // Only its path, without the user's CFLAGS, which may be for this machine only: every program
    // loads the library.
    let mut command = Command::new(compiler.path());
    if compiler.is_like_clang() {
        command.arg(format!("--target={}", variable("TARGET").to_string_lossy()));
    }
    command.args(FLAGS).arg("-o").arg(target).arg(SOURCE);
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?} failed");
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_default()
}
