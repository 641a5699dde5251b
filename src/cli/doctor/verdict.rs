//! What works on a node, and what to ask for where something does not.
//!
//! Owns the conclusion and the exit status. Invariant: a way works if it was tried and did, and for
//! no other reason.

use super::check::Check;
use super::exit;
use crate::error::{Error, Kind};
use crate::lifecycle::doctor::{Device, Failure, Node, Trial, Tried};
use crate::log::printable;

/// What follows from all that was found.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    /// Each way, and what was said where it does not work.
    pub(super) ways: [(&'static str, Tried); 3],
    /// What to send to the administrator.
    pub(super) request: Option<String>,
}

impl Verdict {
    pub(super) fn of(node: &Node, trial: &Trial, checks: &[Check]) -> Self {
        let ways = [
            ("archfs mount", trial.mount.clone()),
            ("archfs run", trial.run.clone()),
            ("archfs run --private", trial.run_private.clone()),
        ];
        // Who mounts and lacks only the private way has nothing to ask for.
        let request = trial.mount.is_err().then(|| request(node, checks)).flatten();
        Self { ways, request }
    }

    /// 0, or that of a mount which is impossible here.
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
        for (way, tried) in &self.ways {
            if let Err(Failure { said, hint, .. }) = tried {
                let hint = hint.as_ref().map(|hint| format!(" (hint: {hint})"));
                let why = [said.as_str(), hint.as_deref().unwrap_or_default()].concat();
                lines.push_str(&format!("{way} does not: {}\n", printable(&why)));
            }
        }
        if let Some(request) = &self.request {
            lines.push_str(&format!("ask the administrator: {request}\n"));
        }
        lines
    }
}

/// Without the device nothing helps; with it the helper does, and namespaces do where that can not.
fn request(node: &Node, checks: &[Check]) -> Option<String> {
    let of = |name: &str| checks.iter().find(|check| check.name == name)?.request;
    let device = of("device");
    let way = of("fusermount").or_else(|| of("namespaces"));
    let wishes: Vec<_> = [device, way].into_iter().flatten().collect();
    if wishes.is_empty() || (node.container.is_some() && node.device != Device::Opens) {
        return None;
    }
    Some(format!(
        "\"Please {}, so that users can mount their datasets with archfs (FUSE, read-only) in jobs.\"",
        wishes.join(", and ")
    ))
}
