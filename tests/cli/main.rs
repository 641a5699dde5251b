//! Commands and documents, apart from mounts: what `info`, `doctor`, `ls` and `cat` print, errors,
//! manual pages.

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod config;
mod doctor;
mod incomplete;
mod info;
mod ls;
mod mistakes;
mod pages;
mod slow_reads;
