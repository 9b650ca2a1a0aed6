//! Entry points of the fuzz targets for connections.

use tokio_rustls::rustls::pki_types::CertificateDer;

use super::frame_monitor::{AllowedProtocol, FrameMonitor};
use crate::access::Certificate;

/// Bit in the header of a piece: set if the server sends the piece.
const WRITTEN: u8 = 0x80;

/// Passes the pieces of a connection to the frame monitor. The result must not depend on how the
/// bytes are split.
///
/// The first byte is 0 for HTTP/2 only. A piece is a header (its length and `WRITTEN`) and its
/// bytes.
pub fn http2_frames(input: &[u8]) {
    let Some((protocol, pieces)) = input.split_first() else {
        return;
    };
    let observe = |piece_max: usize| {
        let mut frames = FrameMonitor::new(match protocol {
            0 => AllowedProtocol::Http2,
            _ => AllowedProtocol::Either,
        });
        let is_accepted = follow(&mut frames, pieces, piece_max);
        (is_accepted, frames.has_started(), frames.calls())
    };
    assert_eq!(observe(usize::MAX), observe(1));
}

/// Passes the pieces on, split to `piece_max` bytes. Returns false if the connection was rejected.
fn follow(frames: &mut FrameMonitor, mut pieces: &[u8], piece_max: usize) -> bool {
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

/// Parses a certificate (DER), the caller's name in it, and its validity.
pub fn certificate_names(certificate: &[u8]) {
    if let Some(certificate) = Certificate::read(&[CertificateDer::from(certificate)]) {
        if let Ok(name) = certificate.name() {
            assert!(name.starts_with("spiffe://"), "{name}");
        }
        let _ = certificate.is_valid();
    }
}
