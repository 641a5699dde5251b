//! The result of one check. A problem has a remedy.

/// The severity of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Everything is fine.
    Good,
    /// Worth knowing.
    Note,
    /// It prevents a way to mount, or makes the mount useless.
    Problem,
}

impl State {
    /// Its stable name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }

    /// Its word in the text.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Note => "warning",
            Self::Problem => "error",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug)]
pub(super) struct Check {
    /// What was checked; a stable key.
    pub(super) name: &'static str,
    pub(super) state: State,
    /// One line.
    pub(super) text: String,
    /// What a user without root rights can do.
    pub(super) remedy: Option<String>,
    /// What the administrator can do, as a phrase after "please".
    pub(super) request: Option<&'static str>,
}

impl Check {
    pub(super) fn good(name: &'static str, text: impl Into<String>) -> Self {
        Self { name, state: State::Good, text: text.into(), remedy: None, request: None }
    }

    /// A note, with a remedy if there is one.
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

    /// Adds a request to the administrator.
    #[must_use]
    pub(super) fn asking(mut self, request: &'static str) -> Self {
        self.request = Some(request);
        self
    }
}
