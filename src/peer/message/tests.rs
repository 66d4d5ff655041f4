//! What is written is read again, and nothing that was cut off.

use super::*;

fn samples() -> Vec<Message<'static>> {
    let key = Key::parse(b"a key").expect("short enough");
    let version = Version { time: 7, writer: 9 };
    let request = RequestKey(5);
    let value = Value { bytes: b"value", version: -2 };
    let write = Write { key, version, value: Some(value), is_set: false, request };
    let client: SocketAddr = "[::1]:9".parse().expect("an address");
    let v4: SocketAddr = "127.0.0.1:9".parse().expect("an address");
    vec![
        Message::Forward {
            client: ClientAddress { address: v4, needs_proxy: true },
            front_end: MemberId(7),
            waited_ms: 4,
            hops: 1,
            datagram: b"datagram",
        },
        Message::Reply { client, datagram: b"reply" },
        Message::Write {
            token: 1,
            write,
            hint_for: Some(MemberId(8)),
            replaces: true,
            only_if_present: false,
        },
        Message::Write {
            token: 1,
            write: Write { value: None, ..write },
            hint_for: None,
            replaces: false,
            only_if_present: true,
        },
        Message::Stored { token: 2, outcome: WriteOutcome::BelowWipe(6), existed: true },
        Message::Stored { token: 2, outcome: WriteOutcome::NoSpace, existed: false },
        Message::Undo { token: 3, key, version, request },
        Message::Undone { token: 3 },
        Message::Read {
            token: 4,
            role: ReadRole::Confirm,
            client,
            format: Format::Raw,
            id: MessageId([1; 16]),
            key,
            at_least: version,
        },
        Message::ReadHit { token: 5, version },
        Message::ReadMiss { token: 6, unknown: true, removed: version },
        Message::ReadValue { token: 7, version, value },
        Message::ReadRecord { token: 8, unknown: true, version, value: None, is_set: false },
        Message::ReadRecord { token: 9, unknown: false, version, value: Some(value), is_set: true },
        Message::Hint { write },
        Message::Hint { write: Write { is_set: true, ..write } },
        Message::HintStored { key, version },
        Message::CatchUp { round: 1 },
        Message::HintsLeft { round: 1, hints: 2, remembers: true, layouts: MemberLists(b"\x01\0ABCDEFGH") },
        Message::Compare { asked_at: 1, wiped_at: 2, roots: Roots(b"ABCDEFGHIJ") },
        Message::Compared { asked_at: 1, wiped_at: 2, roots: Roots(b"") },
        Message::Covered { roots: Roots(b"ABCDEFGHIJabcdefghij") },
        Message::Mend { key, to: MemberId(3) },
        Message::Recall { token: 8, request },
        Message::Recalled { token: 8, known: Recollection::Nothing },
        Message::Recalled { token: 8, known: Recollection::Done(1) },
        Message::Settled { request, existed: true },
        Message::Probe { stamp: 9, late: true },
        Message::Echo { stamp: 9 },
        Message::Ping,
        Message::Pong,
    ]
}

#[test]
fn member_lists_survive_the_wire_and_differences_are_short() {
    let list = |ids: &[u64]| ids.iter().map(|id| MemberId(*id)).collect::<Vec<_>>();
    let lists = [list(&[1, 2, 3, 5]), list(&[1, 2, 3]), list(&[2, 4, 5]), list(&[])];
    let mut bytes = Vec::new();
    MemberLists::push(&mut bytes, &lists[0], lists[1..].iter().map(Vec::as_slice));
    assert_eq!(MemberLists::over(&bytes).to_vecs(), lists);
    assert_eq!(MemberLists::over(&bytes[..bytes.len() - 1]).to_vecs(), lists[..3]);
    assert!(MemberLists::over(&[]).to_vecs().is_empty());
    let hundred: Vec<MemberId> = (0..100).map(MemberId).collect();
    let mut bytes = Vec::new();
    MemberLists::push(&mut bytes, &hundred, [&hundred[1..], &hundred[..99]].into_iter());
    assert!(bytes.len() < 850, "{}", bytes.len());
}

#[test]
fn messages_survive_the_wire_and_cut_ones_do_not() {
    for message in samples() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(Message::decode(&bytes), Some(message));
        let open_ended = matches!(
            message,
            Message::Forward { .. }
                | Message::Reply { .. }
                | Message::HintsLeft { .. }
                | Message::Compare { .. }
                | Message::Compared { .. }
                | Message::Covered { .. }
        );
        if !open_ended {
            for end in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..end]), None, "{message:?} cut at {end}");
            }
        }
    }
}
