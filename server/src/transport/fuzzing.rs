//! What the fuzz targets of connections call.

use tokio_rustls::rustls::pki_types::CertificateDer;

use super::frames::{Frames, Speaks};
use crate::access::Certificate;

/// The bit in the head of a piece that says which way it goes.
const WRITTEN: u8 = 0x80;

/// Observes the pieces of a connection: what they show must not depend on where they are cut.
///
/// The first byte is 0 for HTTP/2 alone. A piece is a head (its length and `WRITTEN`) and its bytes.
pub fn http2_frames(input: &[u8]) {
    let Some((speaks, pieces)) = input.split_first() else {
        return;
    };
    let observe = |piece_max: usize| {
        let mut frames = Frames::new(match speaks {
            0 => Speaks::Http2,
            _ => Speaks::Either,
        });
        let is_accepted = follow(&mut frames, pieces, piece_max);
        (is_accepted, frames.have_begun(), frames.calls())
    };
    assert_eq!(observe(usize::MAX), observe(1));
}

/// Passes pieces on, cut to `piece_max` bytes; false if the connection was refused.
fn follow(frames: &mut Frames, mut pieces: &[u8], piece_max: usize) -> bool {
    while let Some((head, rest)) = pieces.split_first() {
        let length = usize::from(head & !WRITTEN).min(rest.len());
        let (piece, rest) = rest.split_at(length);
        pieces = rest;
        for piece in piece.chunks(piece_max) {
            if head & WRITTEN != 0 {
                frames.written(piece);
            } else if frames.read(piece).is_err() {
                return false;
            }
        }
    }
    true
}

/// Reads a certificate (DER): the name of its caller, and whether it counts.
pub fn certificate_names(certificate: &[u8]) {
    if let Some(certificate) = Certificate::read(&[CertificateDer::from(certificate)]) {
        if let Ok(name) = certificate.name() {
            assert!(name.starts_with("spiffe://"), "{name}");
        }
        let _ = certificate.counts();
    }
}
