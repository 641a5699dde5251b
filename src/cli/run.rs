//! `archfs run`: mounts, runs a command and unmounts.

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use clap::builder::FalseyValueParser;

use super::args::Summary;
use super::bar::Bar;
use super::{args, mistakes, mount, mount_plan, stats, term};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::{self, Display, Outcome, Privacy, RunOptions};
use crate::log::Verbosity;
use crate::progress::Progress;
use crate::sync::Arc;

/// Mount archives, run COMMAND, unmount; exits with COMMAND's status
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "archfs run [OPTIONS] ARCHIVE... [MOUNTPOINT] -- COMMAND [ARG]...",
    after_help = EXAMPLES
)]
pub(super) struct Args {
    #[command(flatten)]
    mount: args::MountArgs,

    /// Mount where only COMMAND and its children see it; leaves no stale mount
    ///
    /// The mount is in a mount namespace of its own.
    #[arg(long, env = "ARCHFS_PRIVATE", value_parser = FalseyValueParser::new())]
    private: bool,

    /// Let COMMAND read uncompressed files from the archive itself
    ///
    /// By a preloaded library. All else goes through the mount.
    #[arg(long, conflicts_with = "overlay")]
    direct: bool,

    /// If this node cannot mount, extract below DIR; removed at the end
    #[arg(long, value_name = "DIR", env = "ARCHFS_OR_EXTRACT")]
    or_extract: Option<PathBuf>,

    /// Leave {} in the arguments of COMMAND as it is [default: replace it by the mount point that
    /// archfs chose]
    #[arg(hide_short_help = true, long)]
    no_replace: bool,

    /// The command; it gets the mount point as ARCHFS_MOUNTPOINT
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  archfs run data.sqfs -- python train.py --data {}
  srun archfs run data.sqfs -- python train.py --data {}  (tasks share a mount)
  archfs run data.sqfs /data -- python train.py           (mounted on /data)
  archfs run --overlay tmp data.sqfs -- yolo train data={}/data.yaml

Without MOUNTPOINT, archfs chooses a private directory in /dev/shm, $TMPDIR or /tmp, and writes it
in place of {} in COMMAND. The same archives in the same job have the same directory. The last path
is MOUNTPOINT unless it is a file, or the only path with --nested.

archfs passes signals on to COMMAND. SIGTERM and SIGHUP also start the grace period. If COMMAND
still runs when it ends, archfs unmounts lazily: files that COMMAND has open stay readable.

Exit status: COMMAND's own, or 128 + N if signal N ended it; 127 if it is not found, 126 if it is
not executable; 120 + the status of `archfs mount` if mounting failed.";

/// What is replaced by the mount point.
const PLACEHOLDER: &[u8] = b"{}";

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let (archives, mount_point) = split(&args.mount.paths, args.mount.recursive)?;
    let mount_point = mount_point.map(mount_plan::absolute).transpose()?;
    if args.mount.notify_pipe()?.is_some() {
        let context = "-o notify_pipe: only for mount";
        return Err(Error::new(Kind::Usage, context)
            .with_hint("leave it out; COMMAND starts when files can be read"));
    }
    let plan = args.mount.plan_of(archives, mount_point.clone().unwrap_or_default())?;
    crate::log::start(plan.verbosity, None);
    let mut plan = lifecycle::resolve_descriptors(plan)?;
    // Over the mount, not as a part of it: only COMMAND sees it.
    let overlay = plan.overlay.take();
    let is_chosen = mount_point.is_none();
    if args.or_extract.is_some() && !is_chosen {
        let context = "--or-extract needs a mount point that archfs chooses";
        let hint = "leave out MOUNTPOINT, and write {} in COMMAND or use ARCHFS_MOUNTPOINT";
        return Err(Error::new(Kind::Usage, context).with_hint(hint));
    }
    if is_chosen {
        plan.mount_point = lifecycle::choose_mount_point(&plan)?;
    }
    let quiet = plan.verbosity == Verbosity::Quiet;
    let has_chart = args.mount.stats == Summary::Chart && !quiet;
    // In its place.
    plan.stats &= !has_chart;
    let privacy = if args.private { Privacy::Private } else { Privacy::Default };
    let show = |message: &str| mount::wait_bar(message, quiet);
    let watch = |progress: &Arc<Progress>| -> Box<dyn Any> {
        Box::new((!quiet).then(|| Bar::watch(progress)))
    };
    let or_extract = args.or_extract.as_ref().map(mount_plan::absolute).transpose()?;
    let options = RunOptions {
        privacy,
        is_direct: args.direct,
        overlay: overlay.as_ref(),
        or_extract: or_extract.as_deref(),
    };
    let command = |path: &Path| match is_chosen && !args.no_replace {
        true => args.command.iter().map(|word| replaced(word, path)).collect(),
        false => args.command.clone(),
    };
    if is_chosen && !args.no_replace && !quiet && is_nested(&args.command) {
        term::print_note(
            "{} is the mount point of the outer `archfs run`; with --no-replace there, it is that of \
             the inner one",
        );
    }
    let display = Display {
        show: &show,
        watch: &watch,
        chart: has_chart.then_some(&|json: &str| stats::print_chart(json)),
    };
    lifecycle::run(&plan, options, &command, display)
}

/// Executes a command in an overlay, if `run` has started this process for that. No option, no
/// variable and no configuration file is read.
pub(super) fn called_in_overlay(arguments: &[OsString]) -> Option<Result<Outcome>> {
    match arguments {
        [_, word, layer, lock, path, command @ ..] if word == lifecycle::IN_OVERLAY => {
            crate::log::start(Verbosity::default(), None);
            let layer = (Path::new(layer), lock.as_os_str());
            Some(lifecycle::execute_in_overlay(layer, Path::new(path), command))
        }
        _ => None,
    }
}

/// The archives, and the mount point if there is one. It is the last path, unless that is a file.
fn split(paths: &[PathBuf], is_nested: bool) -> Result<(&[PathBuf], Option<&PathBuf>)> {
    let Some((last, archives)) = paths.split_last() else { return Ok((paths, None)) };
    if lifecycle::is_archive(last) {
        return match mistakes::misplaced(archives, last) {
            Some(error) => Err(error),
            None => Ok((paths, None)),
        };
    }
    if !archives.is_empty() {
        return Ok((archives, Some(last)));
    }
    if is_nested || !last.is_dir() {
        // A directory of archives. Opening it reports other errors.
        return Ok((paths, None));
    }
    let context = format!("{}: is a directory, not an archive", last.display());
    Err(Error::new(Kind::Usage, context).with_hint(
        "name an archive before it, or pack it: archfs pack DIRECTORY data.sqfs; --nested shows \
         the archives in it",
    ))
}

/// Whether `command` runs `archfs run` with a placeholder, which may be meant for that.
fn is_nested(command: &[OsString]) -> bool {
    let is_archfs = |word: &OsString| Path::new(word).file_name() == Some(OsStr::new("archfs"));
    let start = command.windows(2).position(|pair| is_archfs(&pair[0]) && pair[1] == "run");
    let inner = start.and_then(|start| command.get(start..)).unwrap_or_default();
    inner.iter().any(|word| placeholder_in(word.as_bytes()).is_some())
}

/// `word` with the mount point in place of each placeholder.
fn replaced(word: &OsStr, mount_point: &Path) -> OsString {
    let mut rest = word.as_bytes();
    let mut found = Vec::new();
    while let Some(at) = placeholder_in(rest) {
        let (before, after) = rest.split_at(at);
        found.extend_from_slice(before);
        found.extend_from_slice(mount_point.as_os_str().as_bytes());
        rest = after.get(PLACEHOLDER.len()..).unwrap_or_default();
    }
    found.extend_from_slice(rest);
    OsString::from_vec(found)
}

fn placeholder_in(bytes: &[u8]) -> Option<usize> {
    bytes.windows(PLACEHOLDER.len()).position(|part| part == PLACEHOLDER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inner_run_with_a_placeholder_is_noticed() {
        let is_nested = |command: &str| {
            let words: Vec<OsString> = command.split(' ').map(OsString::from).collect();
            is_nested(&words)
        };
        assert!(is_nested("archfs run b.sqfs -- cat {}/file"));
        assert!(is_nested("srun -n 2 ./bin/archfs run b.sqfs -- train --data={}"));
        assert!(!is_nested("archfs run b.sqfs /mnt -- cat /mnt/file"));
        assert!(!is_nested("archfs ls {}"));
        assert!(!is_nested("train {} archfs run"));
        assert!(!is_nested("archfs"));
    }

    #[test]
    fn each_placeholder_becomes_the_mount_point() {
        let replace = |word: &str| replaced(word.as_ref(), Path::new("/m"));
        for (word, expected) in [
            ("{}", "/m"),
            ("--data={}/train", "--data=/m/train"),
            ("{}:{}", "/m:/m"),
            ("{{}}", "{/m}"),
            ("{ }", "{ }"),
            ("", ""),
        ] {
            assert_eq!(replace(word), expected);
        }
        let invalid = OsStr::from_bytes(b"\xff{}\xff");
        assert_eq!(replaced(invalid, Path::new("/m")).as_bytes(), b"\xff/m\xff");
    }
}
