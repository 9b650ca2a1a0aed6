//! Address blocks by which connection limits and rate limits count clients.

use std::net::{IpAddr, Ipv6Addr};

/// An IPv4 address, or the /64 network of an IPv6 address, because a host can use each address of
/// its /64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct AddressBlock(IpAddr);

/// Mask of the bits that identify the network of an IPv6 address.
const NETWORK: u128 = u128::MAX << 64;

impl From<IpAddr> for AddressBlock {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_addresses_count_by_64() {
        let block = |text: &str| AddressBlock::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(block("2001:db8:1:2::1"), block("2001:db8:1:2:ffff::9"));
        assert_ne!(block("2001:db8:1:2::1"), block("2001:db8:1:3::1"));
        assert_ne!(block("10.0.0.1"), block("10.0.0.2"));
        assert_eq!(block("::ffff:10.0.0.1"), block("10.0.0.1"));
        assert_ne!(block("::ffff:10.0.0.1"), block("::ffff:10.0.0.2"));
    }
}
