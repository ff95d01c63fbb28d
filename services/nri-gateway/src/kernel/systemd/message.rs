//! The few messages of D-Bus that are needed, as bytes: pure. Numbers are little-endian; every value stands at a multiple of its
//! size (D-Bus specification, "Message Protocol").

/// A method call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    destination: &'static str,
    path: &'static str,
    interface: &'static str,
    member: &'static str,
    signature: &'static str,
    body: Vec<u8>,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// It was done.
    Done,
    /// Name and words of an error.
    Refused(String),
}

const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;

const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

// === impl Call ===

impl Call {
    /// The greeting, which a bus wants first.
    pub(super) fn hello() -> Self {
        Self {
            destination: "org.freedesktop.DBus",
            path: "/org/freedesktop/DBus",
            interface: "org.freedesktop.DBus",
            member: "Hello",
            signature: "",
            body: Vec::new(),
        }
    }

    /// `SetUnitProperties(unit, runtime = true, properties)`, each property an array of bytes.
    pub(super) fn set_unit_properties(unit: &str, properties: &[(&str, Vec<u8>)]) -> Self {
        let mut body = Vec::new();
        string(&mut body, unit);
        number(&mut body, 1);
        let mut array = Vec::new();
        // The array begins at a multiple of eight, as its elements do: padding within it counts from there.
        for (name, bytes) in properties {
            pad(&mut array, 8);
            string(&mut array, name);
            signature(&mut array, "ay");
            number(&mut array, length(bytes));
            array.extend(bytes);
        }
        number(&mut body, length(&array));
        pad(&mut body, 8);
        body.extend(array);
        Self {
            destination: "org.freedesktop.systemd1",
            path: "/org/freedesktop/systemd1",
            interface: "org.freedesktop.systemd1.Manager",
            member: "SetUnitProperties",
            signature: "sba(sv)",
            body,
        }
    }

    pub(super) fn encode(&self, serial: u32) -> Vec<u8> {
        let mut fields = Vec::new();
        for (code, kind, text) in [
            (PATH, "o", self.path),
            (INTERFACE, "s", self.interface),
            (MEMBER, "s", self.member),
            (DESTINATION, "s", self.destination),
        ] {
            pad(&mut fields, 8);
            fields.push(code);
            signature(&mut fields, kind);
            string(&mut fields, text);
        }
        if !self.signature.is_empty() {
            pad(&mut fields, 8);
            fields.push(SIGNATURE);
            signature(&mut fields, "g");
            signature(&mut fields, self.signature);
        }
        let mut message = vec![b'l', CALL, 0, 1];
        number(&mut message, length(&self.body));
        number(&mut message, serial);
        number(&mut message, length(&fields));
        message.extend(fields);
        pad(&mut message, 8);
        message.extend(&self.body);
        message
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

fn pad(to: &mut Vec<u8>, multiple: usize) {
    to.resize(to.len().next_multiple_of(multiple), 0);
}

fn number(to: &mut Vec<u8>, n: u32) {
    pad(to, 4);
    to.extend(n.to_le_bytes());
}

fn string(to: &mut Vec<u8>, text: &str) {
    number(to, length(text.as_bytes()));
    to.extend(text.as_bytes());
    to.push(0);
}

fn signature(to: &mut Vec<u8>, text: &str) {
    to.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    to.extend(text.as_bytes());
    to.push(0);
}

/// How many bytes follow the first sixteen; `None` for what is no message of ours.
pub(super) fn rest(head: &[u8; 16]) -> Option<usize> {
    if head.first() != Some(&b'l') {
        return None;
    }
    let (body, fields) = (at(head, 4)?, at(head, 12)?);
    usize::try_from(fields).ok()?.checked_next_multiple_of(8)?.checked_add(usize::try_from(body).ok()?)
}

/// What this message answers to the call with that serial; `None` where it is about something else.
pub(super) fn reply(head: &[u8; 16], rest: &[u8], serial: u32) -> Option<Reply> {
    let kind = *head.get(1)?;
    let fields = rest.get(..usize::try_from(at(head, 12)?).ok()?)?;
    let (mut answers, mut name) = (None, String::new());
    let mut place = 0usize;
    while place < fields.len() {
        place = place.next_multiple_of(8);
        let Some(code) = fields.get(place) else { break };
        let of = usize::from(*fields.get(place + 1)?);
        let kind = fields.get(place + 2..place + 2 + of)?;
        place += 2 + of + 1;
        match kind {
            b"u" => {
                place = place.next_multiple_of(4);
                let n = at(fields, place)?;
                if *code == REPLY_SERIAL {
                    answers = Some(n);
                }
                place += 4;
            }
            b"s" | b"o" => {
                place = place.next_multiple_of(4);
                let text = text(fields, place)?;
                place += 4 + text.len() + 1;
                if *code == ERROR_NAME {
                    name = text;
                }
            }
            b"g" => place += 1 + usize::from(*fields.get(place)?) + 1,
            _ => return None,
        }
    }
    if answers != Some(serial) {
        return None;
    }
    match kind {
        RETURN => Some(Reply::Done),
        ERROR => {
            let body = rest.get(fields.len().next_multiple_of(8)..).unwrap_or_default();
            let said = text(body, 0).unwrap_or_default();
            Some(Reply::Refused(format!("{name}: {said}")))
        }
        _ => None,
    }
}

fn at(bytes: &[u8], place: usize) -> Option<u32> {
    let four = bytes.get(place..place.checked_add(4)?)?;
    Some(u32::from_le_bytes(four.try_into().ok()?))
}

fn text(bytes: &[u8], place: usize) -> Option<String> {
    let long = usize::try_from(at(bytes, place)?).ok()?;
    let begin = place.checked_add(4)?;
    let text = bytes.get(begin..begin.checked_add(long)?)?;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The answer to the call with this serial: done.
    pub(in super::super) fn done(serial: u32) -> Vec<u8> {
        let mut fields = vec![REPLY_SERIAL];
        signature(&mut fields, "u");
        number(&mut fields, serial);
        let mut message = vec![b'l', RETURN, 0, 1];
        number(&mut message, 0);
        number(&mut message, 7);
        number(&mut message, length(&fields));
        message.extend(fields);
        pad(&mut message, 8);
        message
    }

    fn split(message: &[u8]) -> ([u8; 16], Vec<u8>) {
        (message[..16].try_into().unwrap(), message[16..].to_vec())
    }

    #[test]
    fn an_answer_is_taken_for_its_own_call_alone() {
        let (head, body) = split(&done(2));
        assert_eq!(rest(&head), Some(body.len()));
        assert_eq!(reply(&head, &body, 2), Some(Reply::Done));
        assert_eq!(reply(&head, &body, 1), None);
    }

    #[test]
    fn every_value_of_a_call_stands_at_a_multiple_of_its_size() {
        let call = Call::set_unit_properties("abc", &[("AllowedCPUs", vec![1, 2, 3]), ("B", vec![4])]);
        // u32 4, "abc\0" → 8; b at 8; array length at 12; elements from 16.
        assert_eq!(call.body[..16], [3, 0, 0, 0, b'a', b'b', b'c', 0, 1, 0, 0, 0, 49, 0, 0, 0]);
        let encoded = call.encode(1);
        assert_eq!((encoded.len() - call.body.len()) % 8, 0);
        let (head, body) = split(&encoded);
        assert_eq!(rest(&head), Some(body.len()));
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reader(head: [u8; 16], body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (rest(&head), reply(&head, &body, 1));
        }

        #[test]
        fn a_damaged_answer_breaks_nothing(place in 0usize..24, byte: u8) {
            let mut message = done(1);
            message[place] = byte;
            let (head, body) = split(&message);
            let _ = (rest(&head), reply(&head, &body, 1));
        }
    }
}
