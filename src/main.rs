//! The `archfs` program; all of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    archfs::cli::main(std::env::args_os())
}
