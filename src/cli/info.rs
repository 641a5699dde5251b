//! `archfs info`: the contents of an archive, the cost of reading it, and the gain of packing it
//! again.
//!
//! `formats` counts; `screen`, `json` and `advice` present the numbers. `top` finds what is large.
//! Invariant: no file data is read. It takes seconds for any image.

use std::io::Write;

use super::bar::Bar;
use super::exit;
use super::open_args::OpenArgs;
use super::term::written;
use crate::error::Result;
use crate::formats;
use crate::log::Verbosity;
use crate::progress::Progress;
use crate::sync::Arc;
use top::Top;

mod advice;
mod json;
mod screen;
mod top;

/// Show what an archive contains and what a random read of it costs
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  archfs info data.sqfs
  archfs info --json data.tar.zst
  archfs info --top=20 data.sqfs

Exit status: 0; 3 damaged or unknown format; 1 not readable.")]
pub(super) struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// Also print the N largest files, and the N largest directories [default: 10]
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "10")]
    top: Option<usize>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    crate::log::start(Verbosity::Default, None);
    let archive = &args.open.archive;
    let progress = Arc::new(Progress::default());
    let bar = Bar::watch(&progress);
    let info = formats::info(archive, &args.open.options(), &progress);
    let info = info?;
    let top = args.top.map(|count| Top::find(&args.open, count, &progress)).transpose()?;
    drop(bar);
    let shown = archive.display().to_string();
    let text = match args.json {
        true => json::object(&shown, &info, top)?.into_bytes(),
        false => {
            let mut text = screen::lines(&shown, &info, screen::width()).into_bytes();
            text.extend(top.iter().flat_map(Top::lines));
            text
        }
    };
    written(std::io::stdout().write_all(&text))?;
    Ok(exit::of_shown())
}
