//! All that can happen to a mount, tried.
//!
//! `search` goes through every state that can be reached; `end_policy` is the rules of how long a
//! mount is served, as they are.
//! Invariant: nothing here mounts or waits, so all of it runs with the unit tests.

mod end_policy;
mod search;
