//! From the bytes of a trunk to the messages of its two connections: pure, holds at most one message a connection.

use crate::frame::{ConnId, FrameError, FrameHeader, HEADER_LEN};
use crate::message::{Assembler, Header, MessageError};

/// What is known of a trunk's input so far.
#[derive(Debug, Default)]
pub struct Demux {
    head: Vec<u8>,
    frame: Option<(ConnId, usize)>,
    plugin: Assembler,
    runtime: Assembler,
}

/// A whole message as it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The connection it came on.
    pub conn: ConnId,
    /// Its header.
    pub header: Header,
    /// Its body.
    pub body: Vec<u8>,
}

/// Bytes that no correct peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// In a mux header.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// In a ttrpc header.
    #[error(transparent)]
    Message(#[from] MessageError),
}

// === impl Demux ===

impl Demux {
    /// Takes bytes from `bytes`, moving it on, up to the end of the next message; `None`: all taken, none complete.
    pub fn push(&mut self, bytes: &mut &[u8]) -> Result<Option<Incoming>, ProtocolError> {
        loop {
            let Some((conn, left)) = self.frame else {
                if bytes.is_empty() {
                    return Ok(None);
                }
                self.take_header(bytes)?;
                continue;
            };
            if left == 0 {
                self.frame = None;
                continue;
            }
            if bytes.is_empty() {
                return Ok(None);
            }
            let (mut part, _) = bytes.split_at(left.min(bytes.len()));
            let before = part.len();
            let assembler = match conn {
                ConnId::Plugin => &mut self.plugin,
                ConnId::Runtime => &mut self.runtime,
            };
            let message = assembler.push(&mut part)?;
            let used = before - part.len();
            *bytes = bytes.split_at(used).1;
            self.frame = Some((conn, left - used));
            if let Some((header, body)) = message {
                return Ok(Some(Incoming { conn, header, body }));
            }
        }
    }

    /// Whether the input may end here: no frame and no message is incomplete.
    pub fn at_boundary(&self) -> bool {
        self.head.is_empty()
            && self.frame.is_none_or(|(_, left)| left == 0)
            && !self.plugin.is_partial()
            && !self.runtime.is_partial()
    }

    fn take_header(&mut self, bytes: &mut &[u8]) -> Result<(), ProtocolError> {
        let (taken, rest) = bytes.split_at((HEADER_LEN - self.head.len()).min(bytes.len()));
        self.head.extend_from_slice(taken);
        *bytes = rest;
        if let Ok(head) = <[u8; HEADER_LEN]>::try_from(self.head.as_slice()) {
            self.head.clear();
            let header = FrameHeader::decode(head)?;
            self.frame = Some((header.conn, header.len));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::frames_of;
    use crate::message::{Kind, Response, encode};
    use proptest::prelude::*;

    fn message(stream: u32, len: usize) -> Vec<u8> {
        encode(Kind::Response, stream, &Response { status: None, payload: vec![1; len] })
    }

    /// Cuts a message into many mux frames, as a peer may.
    fn shredded(conn: ConnId, message: &[u8], size: usize) -> Vec<u8> {
        let frame = |part: &[u8]| [FrameHeader { conn, len: part.len() }.encode().as_slice(), part].concat();
        message.chunks(size).flat_map(frame).collect()
    }

    fn drain(demux: &mut Demux, mut bytes: &[u8]) -> Vec<(ConnId, u32, usize)> {
        let mut got = Vec::new();
        while let Some(m) = demux.push(&mut bytes).unwrap() {
            got.push((m.conn, m.header.stream, m.body.len()));
        }
        assert!(bytes.is_empty());
        got
    }

    #[test]
    fn two_messages_in_one_frame_are_two_messages() {
        let both = [message(1, 3), message(3, 0)].concat();
        let got = drain(&mut Demux::default(), &shredded(ConnId::Plugin, &both, both.len()));
        assert_eq!(got.len(), 2);
    }

    #[test]
    fn an_empty_frame_is_nothing() {
        let mut demux = Demux::default();
        assert!(drain(&mut demux, &[0, 0, 0, 1, 0, 0, 0, 0]).is_empty());
        assert!(demux.at_boundary());
    }

    #[test]
    fn an_oversize_frame_is_refused_from_its_header_alone() {
        let mut bytes: &[u8] = &[0, 0, 0, 1, 255, 255, 255, 255];
        assert!(Demux::default().push(&mut bytes).is_err());
    }

    #[test]
    fn half_a_message_is_no_boundary() {
        let mut demux = Demux::default();
        let wire = frames_of(ConnId::Runtime, &message(1, 100));
        drain(&mut demux, &wire[..50]);
        assert!(!demux.at_boundary());
        drain(&mut demux, &wire[50..]);
        assert!(demux.at_boundary());
    }

    proptest! {
        #[test]
        fn interleaved_connections_do_not_mix(
            sizes in proptest::collection::vec(0usize..500, 1..8), shred in 1usize..200, cut in 1usize..97,
        ) {
            let mut wire = Vec::new();
            for (n, size) in sizes.iter().enumerate() {
                let a = shredded(ConnId::Plugin, &message(2 * n as u32 + 1, *size), shred);
                let b = frames_of(ConnId::Runtime, &message(2 * n as u32 + 1, size / 2));
                wire.extend(a);
                wire.extend(b);
            }
            let mut demux = Demux::default();
            let got: Vec<_> = wire.chunks(cut).flat_map(|piece| drain(&mut demux, piece)).collect();
            prop_assert_eq!(got.len(), 2 * sizes.len());
            prop_assert!(got.chunks(2).all(|pair| pair[0].0 == ConnId::Plugin && pair[1].0 == ConnId::Runtime));
            prop_assert!(demux.at_boundary());
        }

        #[test]
        fn garbage_ends_in_an_error_or_is_taken_whole(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut demux = Demux::default();
            let mut rest = bytes.as_slice();
            while let Ok(Some(_)) = demux.push(&mut rest) {}
        }
    }
}
