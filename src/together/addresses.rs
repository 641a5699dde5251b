//! The addresses that other nodes may reach this one by.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use if_addrs::Interface;

use crate::error::{Error, Kind, Result};
use crate::os::kernel_file;

/// The most addresses of a record.
const MOST: usize = 8;

/// The type of an InfiniBand interface (ARPHRD_INFINIBAND in linux/if_arp.h).
const INFINIBAND: &str = "32";

/// The addresses of this node with `port`, those of the fastest network first: of all interfaces,
/// or only of the one with this name.
///
/// Fails with `Usage` if there is no interface of that name; `Io` if the system does not list them.
pub(super) fn of_node(interface: Option<&str>, port: u16) -> Result<Vec<SocketAddr>> {
    let found = if_addrs::get_if_addrs();
    let mut found = found.map_err(|error| Error::io("cannot list network interfaces", error))?;
    found.retain(|one| interface.is_none_or(|name| one.name == name) && !one.is_link_local());
    if let (Some(name), true) = (interface, found.is_empty()) {
        let context = format!("--together-interface {name}: no such interface, or no address");
        return Err(
            Error::new(Kind::Usage, context).with_hint("to list interfaces: ip -brief address")
        );
    }
    found.sort_by_key(|one| std::cmp::Reverse(rank(one)));
    Ok(found.iter().take(MOST).map(|one| SocketAddr::new(one.ip(), port)).collect())
}

/// How well other nodes are likely to reach this one by an interface. A loopback address leads them
/// to themselves, which they notice, and daemons of one node to each other.
fn rank(interface: &Interface) -> (bool, bool, i64, bool) {
    let attribute = |name: &str| {
        let path = Path::new("/sys/class/net").join(&interface.name).join(name);
        kernel_file::read_text(path).ok().map(|text| text.trim().to_owned())
    };
    let is_infiniband = attribute("type").as_deref() == Some(INFINIBAND);
    // In Mbit/s; -1 or an error if it is not known.
    let speed = attribute("speed").and_then(|text| text.parse().ok()).unwrap_or(-1);
    let is_v4 = matches!(interface.ip(), IpAddr::V4(_));
    (!interface.is_loopback(), is_infiniband, speed, is_v4)
}
