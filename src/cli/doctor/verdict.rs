//! The conclusion of `archfs doctor`: what works on this node, and what to ask the administrator.
//!
//! Invariant: a way to mount works only if it was tried and succeeded.

use super::check::Check;
use super::exit;
use crate::error::{Error, Kind};
use crate::lifecycle::doctor::{Device, Failure, Node, Trial, Tried};
use crate::log::printable;

/// The conclusion from all checks.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    /// Each way to mount, with its error if it failed.
    pub(super) ways: [(&'static str, Tried); 3],
    /// The request to send to the administrator.
    pub(super) request: Option<String>,
}

impl Verdict {
    pub(super) fn of(node: &Node, trial: &Trial, checks: &[Check]) -> Self {
        let ways = [
            ("archfs mount", trial.mount.clone()),
            ("archfs run", trial.run.clone()),
            ("archfs run --private", trial.run_private.clone()),
        ];
        // A user who can mount and lacks only `run --private` has nothing to ask for.
        let request = trial.mount.is_err().then(|| request(node, checks)).flatten();
        Self { ways, request }
    }

    /// 0, or the exit status of a mount that is impossible here.
    pub(super) fn status(&self) -> u8 {
        match self.works() {
            true => 0,
            false => exit::of(&Error::new(Kind::CannotMount, "")),
        }
    }

    pub(super) fn works(&self) -> bool {
        self.ways.iter().any(|(_, tried)| tried.is_ok())
    }

    pub(super) fn text(&self) -> String {
        let working: Vec<_> =
            self.ways.iter().filter(|(_, it)| it.is_ok()).map(|(way, _)| *way).collect();
        let mut lines = match working.is_empty() {
            true => {
                "nothing can be mounted here; archfs ls, cat, info, verify, index and pack work\n"
                    .to_owned()
            }
            false => format!("works here: {}\n", working.join(", ")),
        };
        // Ways that fail alike share a line.
        let mut failed: Vec<(&Failure, Vec<&str>)> = Vec::new();
        for (way, tried) in &self.ways {
            let Err(failure) = tried else { continue };
            match failed.iter_mut().find(|(other, _)| *other == failure) {
                Some((_, ways)) => ways.push(way),
                None => failed.push((failure, vec![way])),
            }
        }
        for (Failure { said, hint, .. }, ways) in failed {
            let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            lines.push_str(&format!(
                "fails: {}: {}\n",
                ways.join(", "),
                printable(&(said.clone() + &hint))
            ));
        }
        if let Some(request) = &self.request {
            lines.push_str(&format!("ask the administrator: {request}\n"));
        }
        lines
    }
}

/// Nothing works without the device. With it, the helper is enough, and namespaces are the
/// alternative.
fn request(node: &Node, checks: &[Check]) -> Option<String> {
    let of = |name: &str| checks.iter().find(|check| check.name == name)?.request;
    let device = of("device");
    let way = of("fusermount").or_else(|| of("namespaces"));
    let requests: Vec<_> = [device, way].into_iter().flatten().collect();
    if requests.is_empty() || (node.container.is_some() && node.device != Device::Opens) {
        return None;
    }
    let requests = requests.join(", and ");
    Some(format!(
        "\"Please {requests} on the compute nodes, so that users can mount with archfs.\""
    ))
}
