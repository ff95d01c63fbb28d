//! Mux frames: u32 BE connection id, u32 BE payload length, payload.

use crate::message::{HEADER_LEN as MESSAGE_HEADER_LEN, MAX_MESSAGE};

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 8;

/// Largest payload of a frame: one whole ttrpc message with its header.
pub const MAX_PAYLOAD: usize = MAX_MESSAGE + MESSAGE_HEADER_LEN;

/// Largest first frame of a message. A Go peer reads the start of a message through a buffer of this size and drops the trunk
/// on a frame that does not fit; what follows it reads straight into the message.
pub const MAX_FIRST_FRAME: usize = 4096;

/// One of the two connections on a trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnId {
    /// The `Plugin` service: the runtime calls.
    Plugin,
    /// The `Runtime` service: the plugin calls.
    Runtime,
}

/// A checked frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Connection the payload belongs to.
    pub conn: ConnId,
    /// Bytes of payload that follow, at most [`MAX_PAYLOAD`].
    pub len: usize,
}

/// A header that no correct peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Neither the Plugin nor the Runtime connection.
    #[error(
        "mux frame for connection {0}, only 1 (Plugin) and 2 (Runtime) exist: the peer does not speak NRI"
    )]
    UnknownConnection(u32),
    /// Larger than any message.
    #[error("mux frame of {len} bytes on connection {conn}, at most {MAX_PAYLOAD} are allowed")]
    TooLarge {
        /// Connection id.
        conn: u32,
        /// Claimed length.
        len: u32,
    },
}

// === impl ConnId ===

impl ConnId {
    /// The id on the wire.
    pub const fn wire(self) -> u32 {
        match self {
            Self::Plugin => 1,
            Self::Runtime => 2,
        }
    }

    fn from_wire(id: u32) -> Option<Self> {
        match id {
            1 => Some(Self::Plugin),
            2 => Some(Self::Runtime),
            _ => None,
        }
    }
}

// === impl FrameHeader ===

impl FrameHeader {
    /// Checks a header as read.
    pub fn decode(bytes: [u8; HEADER_LEN]) -> Result<Self, FrameError> {
        let [a, b, c, d, e, f, g, h] = bytes;
        let id = u32::from_be_bytes([a, b, c, d]);
        let len = u32::from_be_bytes([e, f, g, h]);
        let conn = ConnId::from_wire(id).ok_or(FrameError::UnknownConnection(id))?;
        match usize::try_from(len) {
            Ok(n) if n <= MAX_PAYLOAD => Ok(Self { conn, len: n }),
            _ => Err(FrameError::TooLarge { conn: id, len }),
        }
    }

    /// The header as written.
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let len = u32::try_from(self.len).unwrap_or(u32::MAX);
        (u64::from(self.conn.wire()) << 32 | u64::from(len)).to_be_bytes()
    }
}

/// The one or two frames that carry one ttrpc message (header included), as a Go peer can read them.
pub fn frames_of(conn: ConnId, message: &[u8]) -> Vec<u8> {
    let (first, rest) = message.split_at(message.len().min(MAX_FIRST_FRAME));
    let mut out = Vec::with_capacity(message.len() + 2 * HEADER_LEN);
    for part in [first, rest].into_iter().filter(|p| !p.is_empty()) {
        out.extend_from_slice(&FrameHeader { conn, len: part.len() }.encode());
        out.extend_from_slice(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Takes frames apart again, as a peer would; also returns the sizes.
    fn unframe(mut bytes: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let (mut message, mut sizes) = (Vec::new(), Vec::new());
        while !bytes.is_empty() {
            let header = FrameHeader::decode(bytes[..HEADER_LEN].try_into().unwrap()).unwrap();
            message.extend_from_slice(&bytes[HEADER_LEN..HEADER_LEN + header.len]);
            sizes.push(header.len);
            bytes = &bytes[HEADER_LEN + header.len..];
        }
        (message, sizes)
    }

    #[test]
    fn a_header_is_big_endian() {
        let header = FrameHeader { conn: ConnId::Runtime, len: 0x0102 };
        assert_eq!(header.encode(), [0, 0, 0, 2, 0, 0, 1, 2]);
        assert_eq!(FrameHeader::decode(header.encode()), Ok(header));
    }

    #[test]
    fn bad_headers_are_refused() {
        assert_eq!(FrameHeader::decode([0; 8]), Err(FrameError::UnknownConnection(0)));
        assert_eq!(FrameHeader::decode([0, 0, 0, 3, 0, 0, 0, 1]), Err(FrameError::UnknownConnection(3)));
        assert_eq!(
            FrameHeader::decode([0, 0, 0, 1, 255, 255, 255, 255]),
            Err(FrameError::TooLarge { conn: 1, len: u32::MAX })
        );
        let just_over = u32::try_from(MAX_PAYLOAD + 1).unwrap().to_be_bytes();
        let [a, b, c, d] = just_over;
        assert!(FrameHeader::decode([0, 0, 0, 2, a, b, c, d]).is_err());
    }

    #[test]
    fn a_message_up_to_4096_bytes_is_one_frame_and_a_larger_one_two() {
        for (len, sizes) in
            [(10, vec![10]), (4096, vec![4096]), (4097, vec![4096, 1]), (20_000, vec![4096, 15_904])]
        {
            assert_eq!(unframe(&frames_of(ConnId::Plugin, &vec![7; len])).1, sizes);
        }
    }

    proptest! {
        #[test]
        fn frames_carry_the_message_unchanged(message in proptest::collection::vec(any::<u8>(), 0..20_000)) {
            let (back, sizes) = unframe(&frames_of(ConnId::Plugin, &message));
            prop_assert_eq!(back, message);
            prop_assert!(sizes.len() <= 2 && sizes.first().is_none_or(|s| *s <= MAX_FIRST_FRAME));
        }

        #[test]
        fn any_eight_bytes_are_a_header_within_bounds_or_an_error(bytes: [u8; 8]) {
            if let Ok(header) = FrameHeader::decode(bytes) {
                prop_assert!(header.len <= MAX_PAYLOAD);
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }
}
