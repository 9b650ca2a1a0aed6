//! Hash slots of Redis Cluster keys.

pub const SLOTS: u16 = 16_384;

/// Returns the slot of a key, which is the hash of the part between its first braces, if that part
/// is not empty.
#[must_use]
pub fn slot_of(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let hashed = match tag {
        Some((tag, _)) if !tag.is_empty() => tag,
        Some(_) | None => key,
    };
    crc16(hashed.as_bytes()) % SLOTS
}

/// Returns a hash tag for this slot.
#[must_use]
pub fn hash_tag_for(slot: u16) -> String {
    let mut tags = (0..u32::MAX).map(|number| format!("{{{number}}}"));
    tags.find(|tag| slot_of(tag) == slot)
        .expect("every slot has keys")
}

/// Computes the CRC-16 of the XMODEM kind.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    })
}
