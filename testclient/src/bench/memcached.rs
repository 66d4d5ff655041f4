//! The part of memcached's protocol that is measured: the text commands get and set in UDP frames.
//!
//! ```text
//! frame     request id(2) sequence(2) datagrams in all(2) reserved(2)      big endian, before each datagram
//! request   get KEY\r\n                      set KEY 0 0 BYTES\r\nVALUE\r\n
//! reply     VALUE KEY 0 BYTES\r\nVALUE\r\nEND\r\n     or END\r\n            STORED\r\n
//! ```
//!
//! A reply that is longer than 1,400 bytes comes in several datagrams of that length, which are checked one
//! by one as they come and in any order. Deliberately not here: its other commands and other protocols.

use super::contents::Contents;

/// Bytes of the frame before each datagram.
pub const FRAME_BYTES: usize = 8;
/// Bytes of the reply in each datagram but the last: `UDP_MAX_PAYLOAD_SIZE` without the frame.
const PIECE_BYTES: usize = 1_400 - FRAME_BYTES;
const REPLY_END: &[u8] = b"\r\nEND\r\n";

/// The frame of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the client chose, for all datagrams of the reply.
    pub request: u16,
    /// Which datagram of the reply this is.
    pub sequence: u16,
    /// Of how many.
    pub datagrams: u16,
}

impl Frame {
    /// Takes a datagram apart; `None` when it is too short or contradicts itself.
    pub fn parse(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = datagram.split_first_chunk::<FRAME_BYTES>()?;
        let number = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let frame = Self { request: number(0), sequence: number(2), datagrams: number(4) };
        (frame.sequence < frame.datagrams).then_some((frame, rest))
    }

    /// The frame of a request, which is always one datagram.
    pub fn of_request(request: u16) -> [u8; FRAME_BYTES] {
        let id = request.to_be_bytes();
        [id[0], id[1], 0, 0, 0, 1, 0, 0]
    }
}

/// The text of a GET.
pub fn get_text(key: &[u8]) -> Vec<u8> {
    [b"get ", key, b"\r\n"].concat()
}

/// The text of a PUT.
pub fn set_text(key: &[u8], value: &[u8]) -> Vec<u8> {
    [b"set ", key, format!(" 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// How one datagram of a reply to GET compares with what must come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The value, or its last missing piece.
    Complete,
    /// A piece of it; others are missing.
    Partial,
    /// Not what must come.
    Wrong,
}

/// Judges one datagram of a reply to GET. `seen` has a bit for each datagram that has come before.
pub fn check_get(
    contents: &Contents,
    key_index: u32,
    key: &[u8],
    frame: Frame,
    piece: &[u8],
    seen: &mut u16,
) -> Piece {
    let head = [b"VALUE ", key, format!(" 0 {}\r\n", contents.value_bytes()).as_bytes()].concat();
    let reply_bytes = head.len() + contents.value_bytes() + REPLY_END.len();
    let datagrams = reply_bytes.div_ceil(PIECE_BYTES);
    let at = usize::from(frame.sequence) * PIECE_BYTES;
    let wanted = PIECE_BYTES.min(reply_bytes.saturating_sub(at));
    let bit = 1u16.checked_shl(frame.sequence.into()).unwrap_or(0);
    if usize::from(frame.datagrams) != datagrams || piece.len() != wanted || *seen & bit != 0 {
        return Piece::Wrong;
    }
    if !fits_reply(contents, key_index, &head, at, piece) {
        return Piece::Wrong;
    }
    *seen |= bit;
    if seen.count_ones() as usize == datagrams { Piece::Complete } else { Piece::Partial }
}

/// Whether a piece can stand at this place of the reply: head, value and end, one after the other.
fn fits_reply(contents: &Contents, key_index: u32, head: &[u8], at: usize, piece: &[u8]) -> bool {
    let value_end = head.len() + contents.value_bytes();
    let (head_part, rest) = piece.split_at(head.len().saturating_sub(at).min(piece.len()));
    let rest_at = at + head_part.len();
    let (value_part, end_part) = rest.split_at(value_end.saturating_sub(rest_at).min(rest.len()));
    let end_at = rest_at + value_part.len();
    let head_right = head_part.is_empty() || head[at..].starts_with(head_part);
    let value_right = value_part.is_empty() || contents.fits(key_index, rest_at - head.len(), value_part);
    let end_right = end_part.is_empty() || REPLY_END[end_at - value_end..].starts_with(end_part);
    head_right && value_right && end_right
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(contents: &Contents, index: u32) -> Vec<Vec<u8>> {
        let value = contents.value(index, 1);
        let head =
            [b"VALUE ", &contents.key(index)[..], format!(" 0 {}\r\n", value.len()).as_bytes()].concat();
        let text = [&head[..], &value, b"\r\nEND\r\n"].concat();
        let pieces = text.chunks(PIECE_BYTES);
        let count = pieces.len() as u16;
        let frame = |sequence: usize| {
            [7u16, sequence as u16, count, 0]
                .iter()
                .flat_map(|number| number.to_be_bytes())
                .collect::<Vec<_>>()
        };
        pieces.enumerate().map(|(sequence, piece)| [frame(sequence), piece.to_vec()].concat()).collect()
    }

    fn judge(contents: &Contents, index: u32, datagrams: &[Vec<u8>], order: &[usize]) -> Vec<Piece> {
        let mut seen = 0;
        let check = |&which: &usize| {
            let (frame, piece) = Frame::parse(&datagrams[which]).unwrap();
            assert_eq!(frame.request, 7);
            check_get(contents, index, &contents.key(index), frame, piece, &mut seen)
        };
        order.iter().map(check).collect()
    }

    #[test]
    fn a_long_reply_is_complete_with_its_last_piece_in_any_order() {
        use Piece::{Complete, Partial, Wrong};
        let contents = Contents::new(1, 10_000);
        let datagrams = reply(&contents, 5);
        assert_eq!(datagrams.len(), 8);
        assert!(datagrams[..7].iter().all(|datagram| datagram.len() == 1_400));
        let mut expected = vec![Partial; 7];
        expected.push(Complete);
        assert_eq!(judge(&contents, 5, &datagrams, &[0, 1, 2, 3, 4, 5, 6, 7]), expected);
        assert_eq!(judge(&contents, 5, &datagrams, &[7, 3, 0, 6, 5, 1, 2, 4]), expected);
        assert_eq!(judge(&contents, 5, &datagrams, &[0, 0]), [Partial, Wrong], "twice the same");
        assert_eq!(judge(&contents, 6, &datagrams, &[0]), [Wrong], "another key's");
    }

    #[test]
    fn short_replies_are_one_datagram_and_damage_is_seen() {
        for value_bytes in [8, 100, 1_000] {
            let contents = Contents::new(1, value_bytes);
            let datagrams = reply(&contents, 5);
            assert_eq!(judge(&contents, 5, &datagrams, &[0]), [Piece::Complete]);
            for damaged_at in [FRAME_BYTES, FRAME_BYTES + 40, datagrams[0].len() - 1] {
                let mut damaged = datagrams.clone();
                damaged[0][damaged_at] ^= 1;
                assert_eq!(judge(&contents, 5, &damaged, &[0]), [Piece::Wrong], "{value_bytes} {damaged_at}");
            }
        }
        let miss = [&Frame::of_request(7)[..], b"END\r\n"].concat();
        assert_eq!(judge(&Contents::new(1, 100), 5, &[miss], &[0]), [Piece::Wrong]);
    }

    #[test]
    fn frames_that_contradict_themselves_are_none() {
        assert_eq!(Frame::parse(&[0; 7]), None);
        assert_eq!(Frame::parse(&[0; 8]), None, "the first of none");
        let request = Frame::of_request(0x1234);
        let (frame, rest) = Frame::parse(&request).unwrap();
        assert_eq!((frame, rest), (Frame { request: 0x1234, sequence: 0, datagrams: 1 }, &[][..]));
    }
}
