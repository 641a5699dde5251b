//! Every state that can be reached from a first one.
//!
//! Owns the search, breadth first, and the story that is told of a fault: the shortest there is.
//! Leaves to each model what a state is, what can happen, and what must not.
//!
//! Written here rather than taken from the crate stateright, which brings a web server and a
//! hundred crates for what are eighty lines.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;

/// Something that changes.
pub(super) trait Model: Clone + Eq + Hash + Debug {
    /// Something that can happen.
    type Step: Copy + Debug;

    /// What can happen now.
    fn steps(&self) -> Vec<Self::Step>;

    /// What comes of it.
    ///
    /// # Errors
    /// What must never be.
    fn after(&self, step: Self::Step) -> Result<Self, String>;

    /// Whether all is over, as it shall be at last.
    fn is_over(&self) -> bool;

    /// Whether `step` is one that may happen, but that nothing may wait for.
    fn is_accident(step: Self::Step) -> bool;

    /// What is wrong with a state, if anything.
    ///
    /// # Errors
    /// That.
    fn check(&self) -> Result<(), String>;
}

/// Goes through all states that can be reached from `first`; returns how many there are.
///
/// # Errors
/// The story of a fault, or of a state from which no way leads to the end without an accident: a
/// deadlock, or a wait for what never comes.
pub(super) fn explore<M: Model>(first: M) -> Result<usize, String> {
    let mut numbers = HashMap::from([(first.clone(), 0_usize)]);
    // By number: from which state it was reached, and by which step.
    let mut origins: Vec<Option<(usize, M::Step)>> = vec![None];
    // By number: from which states a step leads there that is no accident.
    let mut before: Vec<Vec<usize>> = vec![Vec::new()];
    let mut over = Vec::new();
    let mut waiting = VecDeque::from([(0, first.clone())]);
    while let Some((number, state)) = waiting.pop_front() {
        let tell = |fault: String| story(&first, &origins, number, &fault);
        state.check().map_err(tell)?;
        if state.is_over() {
            over.push(number);
        }
        for step in state.steps() {
            let next = state.after(step).map_err(|fault| {
                story(&first, &origins, number, &format!("then {step:?}: {fault}"))
            })?;
            let found = numbers.get(&next).copied().unwrap_or_else(|| {
                let new = origins.len();
                numbers.insert(next.clone(), new);
                origins.push(Some((number, step)));
                before.push(Vec::new());
                waiting.push_back((new, next));
                new
            });
            if !M::is_accident(step) {
                before[found].push(number);
            }
        }
    }
    let mut may_end = vec![false; origins.len()];
    while let Some(number) = over.pop() {
        if !std::mem::replace(&mut may_end[number], true) {
            over.extend(&before[number]);
        }
    }
    match may_end.iter().position(|may_end| !may_end) {
        None => Ok(origins.len()),
        Some(stuck) => Err(story(&first, &origins, stuck, "from here nobody comes to the end")),
    }
}

/// How state `number` is reached, and what is wrong with it.
fn story<M: Model>(
    first: &M,
    origins: &[Option<(usize, M::Step)>],
    number: usize,
    fault: &str,
) -> String {
    let mut steps = Vec::new();
    let mut at = number;
    while let Some((from, step)) = origins[at] {
        steps.push(step);
        at = from;
    }
    steps.reverse();
    let last = steps.iter().try_fold(first.clone(), |state, step| state.after(*step));
    let steps: String = steps.iter().map(|step| format!("  {step:?}\n")).collect();
    format!("{fault}\nafter\n{steps}in {:?}", last.unwrap_or_else(|_| first.clone()))
}
