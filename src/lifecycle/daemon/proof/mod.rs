//! Checks everything that can happen to a mount.
//!
//! `search` visits every reachable state. `end_policy` runs the real rules of how long a mount is
//! served. Nothing here mounts or waits, so it runs with the unit tests.

mod end_policy;
mod search;
