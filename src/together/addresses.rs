//! The port of a daemon, and the addresses that other nodes may reach it by.

use std::cmp::Reverse;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;

use if_addrs::Interface;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use crate::error::{Error, Kind, Result};
use crate::os::kernel_file;

/// The most addresses of a record.
const MOST: usize = 8;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// The type of an InfiniBand interface (ARPHRD_INFINIBAND in linux/if_arp.h).
const INFINIBAND: &str = "32";

/// A port at which this node can be reached.
pub(super) struct Port {
    pub(super) listener: TcpListener,
    /// Those of the fastest network first.
    pub(super) addresses: Vec<SocketAddr>,
    /// The speed of that network in bytes per second, if it is known. Of virtual interfaces, the
    /// kernel has one that no hardware has.
    pub(super) speed: Option<u64>,
}

/// Opens a port on all interfaces, or only on the one with this name.
///
/// Fails with `Usage` if there is no interface of that name; `Io` if there is no port.
pub(super) fn listen(interface: Option<&str>) -> Result<Port> {
    let failed = |error| Error::io("cannot listen for other nodes", error);
    let mut found = if_addrs::get_if_addrs().map_err(failed)?;
    found.retain(|one| interface.is_none_or(|name| one.name == name) && !one.is_link_local());
    found.sort_by_key(|one| Reverse(rank(one)));
    let listener = match (interface, found.first()) {
        (Some(name), None) => {
            let context = format!("--together-interface {name}: no such interface, or no address");
            let error = Error::new(Kind::Usage, context);
            return Err(error.with_hint("to list interfaces: ip -brief address"));
        }
        (Some(_), Some(one)) => {
            let address = one.ip();
            found.retain(|one| one.ip() == address);
            TcpListener::bind((address, 0))
        }
        (None, _) => all_interfaces().or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))),
    };
    let listener = listener.map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let addresses = found.iter().take(MOST).map(|one| SocketAddr::new(one.ip(), port));
    let speed = found.first().filter(|one| attribute(one, "device/uevent").is_some());
    let speed = speed.and_then(self::speed);
    Ok(Port { addresses: addresses.collect(), listener, speed })
}

/// Listens for IPv6 and IPv4, whatever the default of the node (net.ipv6.bindv6only).
fn all_interfaces() -> io::Result<TcpListener> {
    let socket = net::socket_with(
        AddressFamily::INET6,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        Some(ipproto::TCP),
    )?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    net::bind(&socket, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)))?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// How well other nodes are likely to reach this one by an interface. A loopback address leads them
/// to themselves, which they notice, and daemons of one node to each other.
fn rank(interface: &Interface) -> (bool, bool, Option<u64>, bool) {
    let is_infiniband = attribute(interface, "type").as_deref() == Some(INFINIBAND);
    let is_v4 = matches!(interface.ip(), IpAddr::V4(_));
    (!interface.is_loopback(), is_infiniband, speed(interface), is_v4)
}

/// The speed of an interface in bytes per second, as the kernel has it.
fn speed(interface: &Interface) -> Option<u64> {
    // In Mbit/s; -1 or an error if it is not known.
    let megabits: u64 = attribute(interface, "speed")?.parse().ok()?;
    (megabits > 0).then(|| megabits.saturating_mul(1_000_000 / 8))
}

/// What the kernel says of an interface.
fn attribute(interface: &Interface, name: &str) -> Option<String> {
    let path = Path::new("/sys/class/net").join(&interface.name).join(name);
    kernel_file::read_text(path).ok().map(|text| text.trim().to_owned())
}
