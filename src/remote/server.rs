//! Where a file is, and what archfs changes about its requests if the server does not accept them.

use std::ops::Range;

use ureq::http::StatusCode;

use super::Version;
use super::answer::{self, Answer};
use super::failure::{Denial, Failure};
use super::http::Slot;
use super::plain::Plain;
use super::s3::{Environment, Object};
use crate::error::{Error, Kind, Result};
use crate::url;

/// A file and how to ask for it.
#[derive(Debug)]
pub(super) struct Server {
    name: String,
    file: Location,
}

#[derive(Debug)]
enum Location {
    Plain(Plain),
    Object(Object),
}

impl Server {
    /// Where the URL with this name leads.
    ///
    /// # Errors
    /// `Usage` if it is not valid; `Io` if the configuration of S3 cannot be read.
    pub(super) fn of(name: &str) -> Result<Self> {
        Self::with(name, Environment::of_process())
    }

    /// The same with another `environment`.
    pub(super) fn with(name: &str, environment: Environment) -> Result<Self> {
        let url = url::of_name(name);
        let file = match url.strip_prefix("s3://") {
            Some(path) => Location::Object(Object::of(path, environment)?),
            None => Location::Plain(Plain::of(&url)?),
        };
        Ok(Self { name: name.to_owned(), file })
    }

    /// The name for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Reads `range` into `buffer`, which is as long. `opened` is the version and the size that
    /// were opened.
    ///
    /// # Errors
    /// Why it failed.
    pub(super) fn get(
        &self,
        range: &Range<u64>,
        opened: Option<(&Version, u64)>,
        buffer: &mut [u8],
    ) -> std::result::Result<Answer, Failure> {
        let version = opened.map(|(version, _)| version);
        let request = match &self.file {
            Location::Plain(file) => file.request(range, version),
            Location::Object(object) => object.request(range, version),
        };
        let _slot = Slot::take();
        let answer = request.send();
        let answer = answer.and_then(|it| answer::read(it, &request, range, opened, buffer));
        answer.inspect_err(|failure| {
            if let (Location::Plain(file), Failure::Passing { .. }) = (&self.file, failure) {
                file.note_outage(request.generation);
            }
        })
    }

    /// Changes what the next request will be, since the server did not accept one. Returns whether
    /// there is something to change.
    pub(super) fn adapt(&self, denial: &Denial) -> bool {
        match &self.file {
            Location::Plain(file) => file.adapt(denial),
            Location::Object(object) => object.adapt(denial),
        }
    }

    /// The error for a request that was not accepted.
    pub(super) fn denied(&self, denial: Denial) -> Error {
        let Denial { status, code, .. } = denial;
        let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
        let context = format!("{}{code}", answer::answers(status));
        let hint = match &self.file {
            Location::Plain(_) if status.is_redirection() => {
                "there is no end of it, or it is less safe"
            }
            Location::Plain(_) => "a presigned URL may have expired, or a password is missing",
            Location::Object(object) => object.hint(),
        };
        let kind = if status == StatusCode::NOT_FOUND { Kind::NotFound } else { Kind::Denied };
        Error::new(kind, context).with_hint(hint)
    }
}
