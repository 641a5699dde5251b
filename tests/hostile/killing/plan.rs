//! The choices of a round, drawn from the seed and the number of the round.

use std::time::Duration;

use rustix::process::Signal;

/// The users of the rounds: root, and two that no other test mounts as, so that their records
/// belong to this test. fusermount requires users in /etc/passwd.
pub(crate) const ROOT: u32 = 0;
const USERS: [&str; 2] = ["bin", "games"];

/// The UIDs of the two.
pub(crate) fn users() -> [u32; 2] {
    let known = std::fs::read_to_string("/etc/passwd").unwrap();
    USERS.map(|name| {
        let line = known.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        let id = line.and_then(|line| line.split(':').nth(1)?.parse().ok());
        id.unwrap_or_else(|| panic!("there is no user {name} on this machine"))
    })
}

/// How an archive is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Variant {
    MountAsRoot,
    RunAsRoot,
    MountAsUser,
    RunAsUser,
    /// As an ordinary user without fusermount.
    RunInNamespace,
    /// `run --private` as root.
    RunPrivately,
    /// Two holders share a mount, and one is killed.
    Shared,
}

/// The process that gets the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Victim {
    Daemon,
    /// The script that mounted, or `run`.
    Holder,
    /// The command of `run`, or the readers of a script.
    Command,
    /// `archfs mount` in a script, while it mounts.
    Launcher,
    All,
}

/// The phase in which the signal is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Mount,
    Read,
    Unmount,
}

/// The command that follows at the same mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// `archfs run`, while processes of the round still exit.
    RunAtOnce,
    /// `archfs mount` and `unmount`, while processes of the round still exit.
    MountAtOnce,
    /// `archfs mount` after they have exited.
    Mount,
    /// `archfs unmount`, then `mount`.
    Unmount,
    /// `archfs gc`, then `mount`.
    Collect,
}

/// A round.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) number: u64,
    pub(crate) variant: Variant,
    /// Whether each of two sharing holders uses `run`. With one holder, the first entry applies.
    pub(crate) by_run: [bool; 2],
    pub(crate) user: u32,
    pub(crate) victim: Victim,
    pub(crate) phase: Phase,
    pub(crate) signal: Signal,
    /// Delay after the start of the phase, or of the victim while it mounts.
    pub(crate) delay: Duration,
    /// Delay until SIGKILL to all, as batch systems send it.
    pub(crate) kill_after: Option<Duration>,
    pub(crate) then: Then,
    pub(crate) readers: u64,
    /// Whether the script unmounts itself before it exits.
    pub(crate) unmounts: bool,
    pub(crate) seed: u64,
    /// Whether `run` has `--direct`.
    pub(crate) is_direct: bool,
}

impl Plan {
    /// The round with that number.
    pub(crate) fn draw(seed: u64, number: u64, users: [u32; 2]) -> Self {
        let mut random = Random(seed.wrapping_mul(1_000_003).wrapping_add(number));
        let variant = *random.one_of(&[
            Variant::MountAsRoot,
            Variant::RunAsRoot,
            Variant::MountAsUser,
            Variant::RunAsUser,
            Variant::RunInNamespace,
            Variant::RunPrivately,
            Variant::Shared,
        ]);
        let by_run = match variant {
            Variant::MountAsRoot | Variant::MountAsUser => [false; 2],
            Variant::Shared => [random.below(2) == 0, random.below(2) == 0],
            _ => [true; 2],
        };
        let user = match variant {
            Variant::MountAsRoot | Variant::RunAsRoot | Variant::RunPrivately => ROOT,
            Variant::Shared => *random.one_of(&[ROOT, users[0], users[1]]),
            _ => *random.one_of(&users),
        };
        let phase = *random.one_of(&[Phase::Mount, Phase::Read, Phase::Unmount]);
        let mut victims = vec![Victim::Holder, Victim::Command];
        if phase == Phase::Mount && !by_run[0] {
            victims.push(Victim::Launcher);
        }
        if variant != Variant::Shared {
            victims.extend([Victim::Daemon, Victim::All]);
        }
        let then = match variant {
            Variant::RunInNamespace | Variant::RunPrivately => {
                [Then::RunAtOnce, Then::Mount].to_vec()
            }
            // No `gc` as root: it would clear stale mounts that other tests still check.
            _ if user == ROOT => {
                [Then::RunAtOnce, Then::MountAtOnce, Then::Mount, Then::Unmount].to_vec()
            }
            _ => [Then::RunAtOnce, Then::MountAtOnce, Then::Mount, Then::Unmount, Then::Collect]
                .to_vec(),
        };
        let most = random.below(60_000);
        Self {
            number,
            variant,
            by_run,
            user,
            victim: *random.one_of(&victims),
            phase,
            signal: *random.one_of(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::KILL]),
            // Mounting and unmounting are short, so half of the delays are short.
            delay: Duration::from_micros(match random.below(2) {
                0 => most,
                _ => most * most / 60_000,
            }),
            kill_after: (variant != Variant::Shared && random.below(4) == 0)
                .then(|| Duration::from_micros(random.below(15_000))),
            then: *random.one_of(&then),
            readers: 2 + random.below(3),
            unmounts: random.below(2) == 0,
            seed: random.next(),
            is_direct: random.below(2) == 0,
        }
    }

    /// Whether the next command runs while processes of the round still exit.
    pub(crate) fn is_used_at_once(&self) -> bool {
        matches!(self.then, Then::RunAtOnce | Then::MountAtOnce)
    }

    /// Whether the mount is in its own mount namespace.
    pub(crate) fn is_private(&self) -> bool {
        matches!(self.variant, Variant::RunInNamespace | Variant::RunPrivately)
    }
}

/// SplitMix64 of Steele, Lea and Flood.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}
