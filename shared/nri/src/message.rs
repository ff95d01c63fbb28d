//! ttrpc messages: u32 BE length, u32 BE stream id, u8 type, u8 flags, body.

use prost::Message;

use crate::status::{Code, Status};

/// Bytes of a message's header.
pub const HEADER_LEN: usize = 10;

/// Largest body of a message.
pub const MAX_MESSAGE: usize = 4 << 20;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A call.
    Request,
    /// Its answer.
    Response,
    /// A piece of a stream; NRI has none, so it is skipped.
    Data,
}

/// A checked message header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of body that follow, at most [`MAX_MESSAGE`].
    pub len: usize,
    /// Pairs an answer with its call; odd, chosen by the caller, increasing.
    pub stream: u32,
    /// Request, response or data.
    pub kind: Kind,
}

/// A header that no correct peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Larger than ttrpc allows.
    #[error("ttrpc message of {0} bytes, at most {MAX_MESSAGE} are allowed")]
    TooLarge(u32),
    /// Not a type of ttrpc.
    #[error("ttrpc message of unknown type {0}: the peer does not speak ttrpc")]
    UnknownType(u8),
}

/// Puts messages together from a byte stream that is cut anywhere. Holds at most one message.
#[derive(Debug, Default)]
pub struct Assembler {
    buf: Vec<u8>,
    header: Option<Header>,
}

/// Body of a request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Request {
    /// "nri.pkg.api.v1alpha1.Plugin".
    #[prost(string, tag = "1")]
    pub service: String,
    /// "CreateContainer".
    #[prost(string, tag = "2")]
    pub method: String,
    /// The encoded request message.
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
    /// How long the caller waits, nanoseconds; 0: for ever.
    #[prost(int64, tag = "4")]
    pub timeout_nano: i64,
    /// What travels beside the payload.
    #[prost(message, repeated, tag = "5")]
    pub metadata: Vec<KeyValue>,
}

/// One item of metadata.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct KeyValue {
    /// Name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Body of a response.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Response {
    /// Absent or code 0: success.
    #[prost(message, optional, tag = "1")]
    pub status: Option<WireStatus>,
    /// The encoded response message.
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

/// `google.rpc.Status` without its details.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct WireStatus {
    /// gRPC's number.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub message: String,
}

// === impl Header ===

impl Header {
    /// Checks a header as read.
    pub fn decode(bytes: [u8; HEADER_LEN]) -> Result<Self, MessageError> {
        let [a, b, c, d, e, f, g, h, kind, _flags] = bytes;
        let len = u32::from_be_bytes([a, b, c, d]);
        let kind = match kind {
            1 => Kind::Request,
            2 => Kind::Response,
            3 => Kind::Data,
            other => return Err(MessageError::UnknownType(other)),
        };
        match usize::try_from(len) {
            Ok(n) if n <= MAX_MESSAGE => Ok(Self { len: n, stream: u32::from_be_bytes([e, f, g, h]), kind }),
            _ => Err(MessageError::TooLarge(len)),
        }
    }
}

/// A whole message, header and body. The body must have passed [`fits`].
pub fn encode(kind: Kind, stream: u32, body: &impl Message) -> Vec<u8> {
    let len = body.encoded_len();
    let mut out = Vec::with_capacity(HEADER_LEN + len);
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(&stream.to_be_bytes());
    out.push(match kind {
        Kind::Request => 1,
        Kind::Response => 2,
        Kind::Data => 3,
    });
    out.push(0);
    body.encode_raw(&mut out);
    out
}

/// Whether a body may be sent.
pub fn fits(body: &impl Message) -> bool {
    body.encoded_len() <= MAX_MESSAGE
}

// === impl Assembler ===

impl Assembler {
    /// How many bytes are missing: to the end of the header, then to the end of the message. Never 0.
    pub fn wants(&self) -> usize {
        match self.header {
            None => HEADER_LEN - self.buf.len(),
            Some(header) => header.len - self.buf.len(),
        }
    }

    /// Whether a message has begun and not ended.
    pub fn is_partial(&self) -> bool {
        self.header.is_some() || !self.buf.is_empty()
    }

    /// Takes at most [`Assembler::wants`] bytes from `bytes` and moves it on; gives the message that they complete.
    pub fn push(&mut self, bytes: &mut &[u8]) -> Result<Option<(Header, Vec<u8>)>, MessageError> {
        let (taken, rest) = bytes.split_at(self.wants().min(bytes.len()));
        self.buf.extend_from_slice(taken);
        *bytes = rest;
        if self.header.is_none()
            && let Ok(header) = <[u8; HEADER_LEN]>::try_from(self.buf.as_slice())
        {
            self.header = Some(Header::decode(header)?);
            self.buf.clear();
        }
        match self.header {
            Some(header) if self.buf.len() == header.len => {
                self.header = None;
                Ok(Some((header, std::mem::take(&mut self.buf))))
            }
            _ => Ok(None),
        }
    }
}

// === impl Response ===

impl Response {
    /// A response with the outcome of a handler.
    pub fn of(outcome: Result<Vec<u8>, Status>) -> Self {
        match outcome {
            Ok(payload) => Self { status: None, payload },
            Err(status) => Self {
                status: Some(WireStatus { code: status.code.wire(), message: status.message }),
                payload: Vec::new(),
            },
        }
    }

    /// The outcome that a response tells.
    pub fn into_outcome(self) -> Result<Vec<u8>, Status> {
        match self.status {
            Some(status) if status.code != 0 => {
                Err(Status::new(Code::from_wire(status.code), status.message))
            }
            _ => Ok(self.payload),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_has_these_bytes() {
        let request = Request {
            service: "s".into(),
            method: "m".into(),
            payload: vec![9],
            timeout_nano: 2,
            metadata: vec![],
        };
        let expected = [
            0, 0, 0, 11, // length
            0, 0, 0, 5, // stream
            1, 0, // request, no flags
            0x0a, 1, b's', 0x12, 1, b'm', 0x1a, 1, 9, 0x20, 2,
        ];
        assert_eq!(encode(Kind::Request, 5, &request), expected);
    }

    #[test]
    fn an_error_has_these_bytes() {
        let response = Response::of(Err(Status::new(Code::Unimplemented, "no")));
        let expected = [0, 0, 0, 8, 0, 0, 0, 1, 2, 0, 0x0a, 6, 0x08, 12, 0x12, 2, b'n', b'o'];
        assert_eq!(encode(Kind::Response, 1, &response), expected);
    }

    #[test]
    fn oversize_and_unknown_types_are_refused() {
        assert_eq!(
            Header::decode([255, 255, 255, 255, 0, 0, 0, 1, 1, 0]),
            Err(MessageError::TooLarge(u32::MAX))
        );
        assert_eq!(Header::decode([0, 0, 0, 0, 0, 0, 0, 1, 9, 0]), Err(MessageError::UnknownType(9)));
    }

    proptest! {
        #[test]
        fn messages_survive_any_cutting(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..5),
            cut in 1usize..50,
        ) {
            let mut wire = Vec::new();
            for (n, payload) in bodies.iter().enumerate() {
                let stream = u32::try_from(2 * n + 1).unwrap();
                wire.extend(encode(Kind::Response, stream, &Response { status: None, payload: payload.clone() }));
            }
            let (mut assembler, mut got) = (Assembler::default(), Vec::new());
            for mut piece in wire.chunks(cut) {
                while !piece.is_empty() {
                    if let Some((header, body)) = assembler.push(&mut piece).unwrap() {
                        prop_assert_eq!(header.kind, Kind::Response);
                        got.push(Response::decode(body.as_slice()).unwrap().payload);
                    }
                }
            }
            prop_assert_eq!(got, bodies);
            prop_assert!(!assembler.is_partial());
        }

        #[test]
        fn garbage_is_an_error_or_waits_for_more(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut assembler = Assembler::default();
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                if assembler.push(&mut rest).is_err() {
                    break;
                }
                prop_assert!(assembler.wants() > 0 && assembler.wants() <= MAX_MESSAGE);
            }
        }
    }
}
