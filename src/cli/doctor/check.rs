//! One thing that was looked at, in words.
//!
//! Owns the three states there are. Invariant: a problem has a remedy.

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// As it should be.
    Good,
    /// Worth to know.
    Note,
    /// It keeps a way to mount from working, or the mount from being of use.
    Problem,
}

impl State {
    /// Its name in both outputs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }
}

/// What was found of one thing.
#[derive(Clone, Debug)]
pub(super) struct Check {
    /// What was looked at; a key that stays.
    pub(super) name: &'static str,
    pub(super) state: State,
    /// One line.
    pub(super) text: String,
    /// What to do, for someone who is not root.
    pub(super) remedy: Option<String>,
    /// What to ask of the administrator, to stand behind "please".
    pub(super) request: Option<&'static str>,
}

impl Check {
    pub(super) fn good(name: &'static str, text: impl Into<String>) -> Self {
        Self { name, state: State::Good, text: text.into(), remedy: None, request: None }
    }

    /// Something worth to know, with what to do about it where there is something.
    pub(super) fn note(
        name: &'static str,
        text: impl Into<String>,
        remedy: Option<String>,
    ) -> Self {
        Self { name, state: State::Note, text: text.into(), remedy, request: None }
    }

    pub(super) fn problem(
        name: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = Some(remedy.into());
        Self { name, state: State::Problem, text: text.into(), remedy, request: None }
    }

    /// With what to ask of the administrator.
    #[must_use]
    pub(super) fn asking(mut self, request: &'static str) -> Self {
        self.request = Some(request);
        self
    }
}
