//! Whether archives of all formats show the files that were packed.

#[path = "../support/mod.rs"]
mod support;

mod compressed_file;
mod compressed_tar;
mod differential;
mod kernel_calls;
mod linux_source;
mod many;
mod negotiation;
mod oracle;
mod programs;
mod stats;
mod stored_files;
mod system_calls;
mod tar;
mod tar_index;
mod zip;
mod zip_without_zip64;
