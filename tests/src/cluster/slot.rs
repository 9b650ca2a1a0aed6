//! In which slot of a cluster a key lies.

/// How many there are.
pub const SLOTS: u16 = 16_384;

/// The slot of a key: of the part between its first braces, if that is not empty.
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

/// A part of a key by which it lies in this slot.
#[must_use]
pub fn tag_in(slot: u16) -> String {
    let mut tags = (0..u32::MAX).map(|number| format!("{{{number}}}"));
    tags.find(|tag| slot_of(tag) == slot)
        .expect("every slot has keys")
}

/// The XMODEM kind.
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
