//! The time by which a server must send something that archfs can use.
//!
//! The client limits each phase of a request: the lookup of the name, the connection, TLS, the
//! header, each read of the body. Together these take minutes. One deadline therefore limits them
//! all. It moves while a body arrives fast enough, which no setting of the client can do. A request
//! runs on the thread of its caller, so each thread has its own deadline.

use std::cell::Cell;
use std::time::{Duration, Instant};

use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport,
};

thread_local! {
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
    static SKIPPED: Cell<usize> = const { Cell::new(0) };
}

/// Limits the requests of this thread until it is dropped.
pub(super) struct Deadline;

impl Deadline {
    pub(super) fn set(until: Instant) -> Self {
        Self::change(until);
        Self
    }

    /// Sets another time.
    pub(super) fn change(until: Instant) {
        DEADLINE.set(Some(until));
    }

    /// Has the requests of this thread begin after this many addresses of a name, over a new
    /// connection unless that is 0.
    pub(super) fn skip_addresses(&self, count: usize) {
        SKIPPED.set(count);
    }

    /// How many addresses they skip.
    pub(super) fn skipped_addresses() -> usize {
        SKIPPED.get()
    }

    /// Time until the deadline of this thread. `None` if it has none.
    pub(super) fn left() -> Option<Duration> {
        DEADLINE.get().map(|until| until.saturating_duration_since(Instant::now()))
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        DEADLINE.set(None);
        SKIPPED.set(0);
    }
}

/// `timeout`, or the time until the deadline if that is less.
fn limited(mut timeout: NextTimeout) -> NextTimeout {
    if let Some(left) = Deadline::left().filter(|left| *left < *timeout.after) {
        timeout.after = left.into();
    }
    timeout
}

/// Makes connections that keep to the deadline.
#[derive(Debug, Default)]
pub(super) struct LimitedConnector(DefaultConnector);

impl Connector for LimitedConnector {
    type Out = Limited;

    fn connect(
        &self,
        details: &ConnectionDetails,
        _: Option<()>,
    ) -> Result<Option<Limited>, Error> {
        let details = ConnectionDetails {
            uri: details.uri,
            addrs: details.addrs.clone(),
            config: details.config,
            request_level: details.request_level,
            resolver: details.resolver,
            now: details.now,
            timeout: limited(details.timeout),
            current_time: details.current_time.clone(),
            run_connector: details.run_connector.clone(),
            register_shutdown: details.register_shutdown.clone(),
        };
        Ok(self.0.connect(&details, None)?.map(Limited))
    }
}

/// A connection that keeps to the deadline of the thread that uses it.
#[derive(Debug)]
pub(super) struct Limited(Box<dyn Transport>);

impl Transport for Limited {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.0.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.0.transmit_output(amount, limited(timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.0.await_input(limited(timeout))
    }

    fn is_open(&mut self) -> bool {
        self.0.is_open()
    }

    fn is_tls(&self) -> bool {
        self.0.is_tls()
    }
}
