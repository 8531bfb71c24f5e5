//! The client that makes room where there are more clients than places.

use std::collections::BTreeMap;

use std::net::{IpAddr, Ipv6Addr};

/// A client that may have to make room.
#[derive(Clone, Copy, Debug)]
pub struct CrowdMember<H> {
    /// Grows in the order in which clients came.
    pub number: u64,
    /// The host that answers for the client.
    pub host: H,
    /// The steps that the client has taken to say what it wants.
    pub progress: u32,
}

/// The client that makes room for one more: of those that have come least far, and of the host that
/// has the most of these, the one that came first. So silent clients close each other, and none
/// that has begun to speak; and those of one host none of another.
pub fn makes_room<H: Ord + Copy>(clients: &[CrowdMember<H>]) -> Option<u64> {
    let least = clients.iter().map(|one| one.progress).min()?;
    let behind = || clients.iter().filter(|one| one.progress == least);
    let mut counts: BTreeMap<H, usize> = BTreeMap::new();
    behind().for_each(|one| *counts.entry(one.host).or_default() += 1);
    let most = counts.values().max()?;
    let crowded = behind().filter(|one| counts.get(&one.host) == Some(most));
    crowded.map(|one| one.number).min()
}

/// The network of an address for which one host answers: of IPv6 a host has 64 bits of addresses.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_host_with_the_most_goes() {
        let of = |all: &[(u64, char, u32)]| {
            let one = |&(number, host, progress)| CrowdMember { number, host, progress };
            makes_room(&all.iter().map(one).collect::<Vec<_>>())
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(3, 'a', 0), (1, 'b', 0), (2, 'a', 0)]), Some(2));
        assert_eq!(of(&[(1, 'a', 0), (2, 'b', 0)]), Some(1));
        assert_eq!(of(&[(1, 'a', 1), (2, 'a', 1), (3, 'b', 0)]), Some(3), "it has said nothing");
    }

    #[test]
    fn a_host_has_many_addresses() {
        let of = |text: &str| network_of(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
