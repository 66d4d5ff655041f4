//! Where members are, for the one question that is asked of every datagram: is its sender one of them?
//!
//! An IPv4 address with its port is one number, and to compare numbers costs a fraction of what it costs to compare
//! addresses: the search must not be felt in large clusters.

use std::net::{SocketAddr, SocketAddrV4};

/// A set of addresses.
#[derive(Debug)]
pub(super) struct Addresses {
    /// Sorted.
    ipv4: Vec<u64>,
    /// Sorted.
    ipv6: Vec<SocketAddr>,
}

impl Addresses {
    /// The set of these.
    pub(super) fn of(addresses: impl Iterator<Item = SocketAddr>) -> Self {
        let mut set = Self { ipv4: Vec::new(), ipv6: Vec::new() };
        for address in addresses {
            match address {
                SocketAddr::V4(address) => set.ipv4.push(number_of(address)),
                SocketAddr::V6(_) => set.ipv6.push(address),
            }
        }
        set.ipv4.sort_unstable();
        set.ipv6.sort_unstable();
        set
    }

    /// Whether an address is in it.
    pub(super) fn has(&self, address: SocketAddr) -> bool {
        match address {
            SocketAddr::V4(address) => self.ipv4.binary_search(&number_of(address)).is_ok(),
            SocketAddr::V6(_) => self.ipv6.binary_search(&address).is_ok(),
        }
    }
}

fn number_of(address: SocketAddrV4) -> u64 {
    u64::from(address.ip().to_bits()) << 16 | u64::from(address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_was_put_in_and_nothing_else() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let of_members =
            ["127.0.0.1:4411", "127.0.0.1:4410", "[::1]:4410", "10.0.0.1:1", "[::ffff:10.0.0.2]:1"];
        let set = Addresses::of(of_members.into_iter().map(address));
        assert!(of_members.into_iter().all(|member| set.has(address(member))));
        for other in ["127.0.0.1:4412", "127.0.0.2:4410", "[::1]:4411", "[::ffff:10.0.0.1]:1", "10.0.0.2:1"] {
            assert!(!set.has(address(other)), "{other}");
        }
    }
}
