//! Checks everything that can happen to a mount.
//!
//! `explore` visits every state that can be reached from a first one, breadth-first, and reports a
//! fault with the shortest sequence of steps that leads to it. `end_policy` runs the real rules of
//! how long a mount is served. Nothing here mounts or waits, so it runs with the unit tests.
//!
//! The search takes eighty lines. The crate stateright would bring a web server and a hundred
//! crates.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;

mod end_policy;

/// A system whose states are searched.
trait Model: Clone + Eq + Hash + Debug {
    /// Something that can happen.
    type Step: Copy + Debug;

    /// Steps that are possible now.
    fn steps(&self) -> Vec<Self::Step>;

    /// The state after `step`.
    fn after(&self, step: Self::Step) -> Result<Self, String>;

    /// Whether this is a valid final state.
    fn is_over(&self) -> bool;

    /// Whether `step` may happen, but the end must be reachable without it.
    fn is_accident(step: Self::Step) -> bool;

    /// Checks this state.
    fn check(&self) -> Result<(), String>;
}

/// Visits all states that can be reached from `first`; returns their number.
///
/// Fails with the steps to a fault, or to a state from which the end can only be reached by an
/// accident: a deadlock, or a wait for something that never comes.
fn explore<M: Model>(first: M) -> Result<usize, String> {
    let mut numbers = HashMap::from([(first.clone(), 0_usize)]);
    // For each state: the state it was reached from, and the step.
    let mut origins: Vec<Option<(usize, M::Step)>> = vec![None];
    // For each state: the states that lead to it by a step that is no accident.
    let mut predecessors: Vec<Vec<usize>> = vec![Vec::new()];
    let mut ending = Vec::new();
    let mut queue = VecDeque::from([(0, first.clone())]);
    while let Some((number, state)) = queue.pop_front() {
        let report = |fault: String| trace(&first, &origins, number, &fault);
        state.check().map_err(report)?;
        if state.is_over() {
            ending.push(number);
        }
        for step in state.steps() {
            let next = state.after(step).map_err(|fault| {
                trace(&first, &origins, number, &format!("then {step:?}: {fault}"))
            })?;
            let found = numbers.get(&next).copied().unwrap_or_else(|| {
                let new = origins.len();
                numbers.insert(next.clone(), new);
                origins.push(Some((number, step)));
                predecessors.push(Vec::new());
                queue.push_back((new, next));
                new
            });
            if !M::is_accident(step) {
                predecessors[found].push(number);
            }
        }
    }
    let mut may_end = vec![false; origins.len()];
    while let Some(number) = ending.pop() {
        if !std::mem::replace(&mut may_end[number], true) {
            ending.extend(&predecessors[number]);
        }
    }
    match may_end.iter().position(|may_end| !may_end) {
        None => Ok(origins.len()),
        Some(stuck) => Err(trace(&first, &origins, stuck, "no path leads from here to the end")),
    }
}

/// The steps to state `number`, and what is wrong with it.
fn trace<M: Model>(
    first: &M,
    origins: &[Option<(usize, M::Step)>],
    number: usize,
    fault: &str,
) -> String {
    let mut steps = Vec::new();
    let mut current = number;
    while let Some((from, step)) = origins[current] {
        steps.push(step);
        current = from;
    }
    steps.reverse();
    let last = steps.iter().try_fold(first.clone(), |state, step| state.after(*step));
    let steps: String = steps.iter().map(|step| format!("  {step:?}\n")).collect();
    format!("{fault}\nafter\n{steps}in {:?}", last.unwrap_or_else(|_| first.clone()))
}
