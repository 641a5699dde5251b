//! The output of `archfs doctor --json`.
//!
//! Scripts rely on the keys (docs/CLI.md); the wording of texts and remedies may change. Invariant:
//! every key is present on every node, and `null` if its value is unknown.

use std::collections::BTreeMap;

use serde::Serialize;

use super::check::Check;
use super::verdict::Verdict;
use crate::error::{Error, Kind, Result};
use crate::lifecycle::doctor::{Failure, Node, Trial, Tried};

#[derive(Serialize)]
struct Object<'a> {
    version: &'static str,
    can_mount: bool,
    works: Works<'a>,
    checks: BTreeMap<&'static str, CheckObject<'a>>,
    numbers: Numbers,
    request: Option<&'a str>,
}

#[derive(Serialize)]
struct Works<'a> {
    mount: WayObject<'a>,
    run: WayObject<'a>,
    run_private: WayObject<'a>,
}

#[derive(Serialize)]
struct WayObject<'a> {
    works: bool,
    said: Option<&'a str>,
    hint: Option<&'a str>,
}

#[derive(Serialize)]
struct CheckObject<'a> {
    state: &'static str,
    text: &'a str,
    remedy: Option<&'a str>,
}

/// Bytes and counts.
#[derive(Serialize)]
struct Numbers {
    memory_left: Option<u64>,
    cache: u64,
    processors: usize,
    open_files: Option<u64>,
    threads_left: Option<u64>,
}

pub(super) fn object(
    node: &Node,
    trial: &Trial,
    checks: &[Check],
    verdict: &Verdict,
) -> Result<String> {
    let object = Object {
        version: env!("CARGO_PKG_VERSION"),
        can_mount: verdict.works(),
        works: Works {
            mount: WayObject::of(&trial.mount),
            run: WayObject::of(&trial.run),
            run_private: WayObject::of(&trial.run_private),
        },
        checks: checks.iter().map(|check| (check.name, CheckObject::of(check))).collect(),
        numbers: Numbers {
            memory_left: node.memory.left.map(|left| left.bytes),
            cache: node.memory.cache,
            processors: node.processors,
            open_files: node.descriptors.most,
            threads_left: node.processes.left(),
        },
        request: verdict.request.as_deref(),
    };
    serde_json::to_string(&object)
        .map_err(|error| Error::new(Kind::Io, "cannot write JSON").with_source(error))
}

impl<'a> WayObject<'a> {
    fn of(tried: &'a Tried) -> Self {
        let (said, hint) = match tried {
            Ok(()) => (None, None),
            Err(Failure { said, hint, .. }) => (Some(said.as_str()), hint.as_deref()),
        };
        Self { works: tried.is_ok(), said, hint }
    }
}

impl<'a> CheckObject<'a> {
    fn of(check: &'a Check) -> Self {
        Self { state: check.state.name(), text: &check.text, remedy: check.remedy.as_deref() }
    }
}
