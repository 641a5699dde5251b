//! The `archfs` program. All code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    archfs::cli::main(std::env::args_os())
}
