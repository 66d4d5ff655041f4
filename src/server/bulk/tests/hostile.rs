//! Peers that lie, dawdle, or break off.

use super::foe::Foe;
use super::*;
use crate::peer::bulk::{FRAME_HEAD_BYTES, HELLO_BYTES, Heard};

/// A member that is none of the hosts.
const STRANGER: MemberId = MemberId(0x5eed);

fn host_that_knows_the_stranger(times: Times) -> Host {
    let host = Host::start_with(KEY, times);
    host.plane.members.lock().insert(STRANGER);
    host
}

/// Runs a whole session with `change` made to everything that the asker sends; returns whether the
/// request was answered.
fn is_answered(host: &Host, mut change: impl FnMut(usize, &mut Vec<u8>)) -> bool {
    let mut foe = Foe::connect(host, STRANGER);
    let mut hello = foe.talk.hello().to_vec();
    change(0, &mut hello);
    let is_whole = hello.len() == HELLO_BYTES;
    foe.send(&hello);
    if is_whole && foe.hear() == Some(Heard::Hello) {
        let mut rest = Vec::new();
        foe.talk.greet(&mut rest);
        rest.extend(foe.frame(b"request"));
        change(HELLO_BYTES, &mut rest);
        foe.send(&rest);
    }
    foe.fall_silent();
    0 < foe.await_end()
}

const SESSION_BYTES: usize = HELLO_BYTES + 2 * FRAME_HEAD_BYTES + b"request".len();

#[test]
fn no_changed_bit_is_answered() {
    let host = host_that_knows_the_stranger(PATIENT);
    assert!(is_answered(&host, |_, _| {}));
    for bit in 0..SESSION_BYTES * 8 {
        let flip = |from: usize, bytes: &mut Vec<u8>| {
            if let Some(byte) = (bit / 8).checked_sub(from).and_then(|index| bytes.get_mut(index)) {
                *byte ^= 1 << (bit % 8);
            }
        };
        assert!(!is_answered(&host, flip), "bit {bit}");
    }
    assert_eq!(host.total(Metric::BulkServed), 1);
    assert_eq!(host.total(Metric::BulkAccepted), 1 + SESSION_BYTES as u64 * 8);
}

#[test]
fn no_cut_session_is_answered() {
    let host = host_that_knows_the_stranger(PATIENT);
    for cut in 0..SESSION_BYTES {
        let cut_off = |from: usize, bytes: &mut Vec<u8>| bytes.truncate(cut.saturating_sub(from));
        assert!(!is_answered(&host, cut_off), "{cut} bytes");
    }
    // Breaking off is not yet a crime.
    assert_eq!(host.counts(), format!("bulk_accepted {SESSION_BYTES}"));
}

/// Sends so many bytes of a session, and waits for the end.
fn break_off_after(bytes: usize, host: &Host) {
    let mut foe = Foe::connect(host, STRANGER);
    let hello = foe.talk.hello();
    foe.send(&hello[..bytes.min(HELLO_BYTES)]);
    // Under a short limit it may be too late already.
    if HELLO_BYTES <= bytes && foe.hear() == Some(Heard::Hello) {
        let mut rest = Vec::new();
        foe.talk.greet(&mut rest);
        rest.extend(foe.frame(b"request"));
        foe.send(&rest[..bytes - HELLO_BYTES]);
    }
    assert_eq!(foe.await_end(), 0, "{bytes} bytes");
}

#[test]
fn whoever_breaks_off_without_a_word_is_cut_off_by_the_clock() {
    let host = host_that_knows_the_stranger(Times { handshake: SHORT, ..PATIENT });
    let in_handshake = [0, 1, HELLO_BYTES - 1, HELLO_BYTES, HELLO_BYTES + FRAME_HEAD_BYTES - 1];
    for bytes in in_handshake {
        break_off_after(bytes, &host);
    }
    assert_eq!(host.counts(), "bulk_accepted 5, bulk_timed_out 5");
    let host = host_that_knows_the_stranger(Times { transfer: SHORT, ..PATIENT });
    let proven = HELLO_BYTES + FRAME_HEAD_BYTES;
    for bytes in [proven + 1, proven + FRAME_HEAD_BYTES, SESSION_BYTES - 1] {
        break_off_after(bytes, &host);
    }
    assert_eq!(host.counts(), "bulk_accepted 3, bulk_timed_out 3");
    let host = host_that_knows_the_stranger(Times { idle: SHORT, ..PATIENT });
    break_off_after(proven, &host);
    assert_eq!(host.counts(), "bulk_accepted 1", "being at rest is no fault");
}

#[test]
fn who_trickles_is_cut_off_while_still_sending() {
    let times = Times { transfer: SHORT, ..PATIENT };
    let host = host_that_knows_the_stranger(times);
    let mut foe = Foe::proven(&host, STRANGER);
    let frame = foe.frame(&vec![0; FRAME_BYTES_MAX]);
    // Always one byte more, and never all of them.
    let mut sent = 0;
    while sent < frame.len() - 1 && foe.send(&frame[sent..=sent]) {
        sent = (sent + 1).min(frame.len() - 2);
        let arrived = || HELLO_BYTES + FRAME_HEAD_BYTES + sent <= host.total(Metric::BulkBytesIn) as usize;
        wait_until("the byte", || arrived() || host.total(Metric::BulkTimedOut) == 1);
        if host.total(Metric::BulkTimedOut) == 1 {
            break;
        }
    }
    assert_eq!(foe.await_end(), 0);
    assert_eq!(host.counts(), "bulk_accepted 1, bulk_timed_out 1");
}

#[test]
fn a_length_bomb_is_refused_by_its_length() {
    let host = host_that_knows_the_stranger(PATIENT);
    let bomb = [&u32::MAX.to_le_bytes()[..], &[0; 16]].concat();
    let mut foe = Foe::connect(&host, STRANGER);
    foe.hello();
    foe.send(&bomb);
    assert_eq!(foe.await_end(), 0);
    let mut foe = Foe::proven(&host, STRANGER);
    assert_eq!(foe.exchange(b"ab"), Some(b"ba".to_vec()));
    foe.send(&bomb);
    assert_eq!(foe.await_end(), 0);
    assert_eq!(host.counts(), "bulk_accepted 2, bulk_too_large 2, bulk_served 1");
    // A stranger may not even announce what a member may.
    let mut foe = Foe::connect(&host, STRANGER);
    foe.hello();
    foe.send(&[&1_000_u32.to_le_bytes()[..], &[0; 16]].concat());
    assert_eq!(foe.await_end(), 0);
    assert_eq!(host.total(Metric::BulkForged), 1);
}

#[test]
fn a_recorded_session_is_refused_everywhere() {
    let (host, other) = (host_that_knows_the_stranger(PATIENT), host_that_knows_the_stranger(PATIENT));
    let mut foe = Foe::proven(&host, STRANGER);
    assert_eq!(foe.exchange(b"ab"), Some(b"ba".to_vec()));
    for (to, hello_bytes) in [(&host, HELLO_BYTES), (&other, 0)] {
        let mut again = Foe::connect(to, STRANGER);
        again.send(&foe.sent);
        assert_eq!(again.await_end(), hello_bytes);
        assert_eq!(to.total(Metric::BulkForged), 1);
    }
    // Within the session, too.
    let request = foe.sent[HELLO_BYTES + FRAME_HEAD_BYTES..].to_vec();
    foe.send(&request);
    assert_eq!(foe.await_end(), 0);
    assert_eq!((host.total(Metric::BulkForged), host.total(Metric::BulkServed)), (2, 1));
}

#[test]
fn garbage_is_refused_at_once() {
    let host = Host::start();
    let garbage: [&[u8]; 4] = [b"G", b"VltP and so on", b"\0", &[0xff; 4_096]];
    for bytes in garbage {
        let mut foe = Foe::connect(&host, STRANGER);
        foe.send(bytes);
        assert_eq!(foe.await_end(), 0);
    }
    assert_eq!(host.counts(), "bulk_accepted 4, bulk_forged 4");
}

#[test]
fn strangers_fill_the_house_and_members_keep_their_place() {
    let times = Times { handshake: PATIENCE, ..PATIENT };
    let host = host_that_knows_the_stranger(times);
    let mut member = Foe::proven(&host, STRANGER);
    assert_eq!(member.exchange(b"ab"), Some(b"ba".to_vec()));
    let mut others: Vec<Foe> = (1..INBOUND_MAX).map(|_| Foe::connect(&host, MemberId(1))).collect();
    for other in &mut others {
        other.hello();
    }
    let mut late = Foe::connect(&host, STRANGER);
    assert_eq!(late.await_end(), 0);
    assert_eq!(member.exchange(b"cd"), Some(b"dc".to_vec()));
    // Where one leaves, one may come.
    drop(others.pop());
    let is_in = || {
        let mut foe = Foe::connect(&host, STRANGER);
        let hello = foe.talk.hello();
        foe.send(&hello) && foe.hear() == Some(Heard::Hello)
    };
    wait_until("a free place", is_in);
    assert_eq!(host.total(Metric::BulkForged) + host.total(Metric::BulkTimedOut), 0);
    assert!(1 <= host.total(Metric::BulkRefusedFull));
}

#[test]
fn one_member_has_only_so_many_connections() {
    let host = host_that_knows_the_stranger(PATIENT);
    host.plane.members.lock().insert(MemberId(1));
    let mut foes: Vec<Foe> = (0..INBOUND_PER_MEMBER_MAX).map(|_| Foe::proven(&host, STRANGER)).collect();
    for foe in &mut foes {
        assert_eq!(foe.exchange(b"ab"), Some(b"ba".to_vec()));
    }
    assert_eq!(Foe::proven(&host, STRANGER).exchange(b"ab"), None);
    assert_eq!(Foe::proven(&host, MemberId(1)).exchange(b"ab"), Some(b"ba".to_vec()));
    for foe in &mut foes {
        assert_eq!(foe.exchange(b"cd"), Some(b"dc".to_vec()));
    }
    assert_eq!(host.total(Metric::BulkRefusedFull), 1);
}

#[test]
fn who_never_reads_stops_only_itself() {
    const REQUESTS: u64 = 200;
    let (a, b) = pair();
    b.plane.members.lock().insert(STRANGER);
    let mut foe = Foe::proven(&b, STRANGER);
    for _ in 0..REQUESTS {
        foe.say(b"size 263168");
    }
    for ticket in 0..50 {
        assert_eq!(a.exchange(&b, &payload(ticket)).map(|response| response.len()), Some(size(ticket)));
    }
    // Far from all of it fits into the kernel's buffers.
    let served = b.total(Metric::BulkServed);
    assert!((50..50 + REQUESTS).contains(&served), "{served}");
    assert_eq!(b.total(Metric::BulkTimedOut), 0);
    // When it reads after all, it gets everything.
    for _ in 0..REQUESTS {
        assert_eq!(foe.hear(), Some(Heard::Frame));
        assert_eq!(foe.talk.take_frame().len(), FRAME_BYTES_MAX);
    }
}

#[test]
fn who_never_reads_is_cut_off_by_the_clock() {
    let times = Times { transfer: SHORT, ..PATIENT };
    let host = host_that_knows_the_stranger(times);
    let mut foe = Foe::proven(&host, STRANGER);
    for _ in 0..200 {
        // Cut off while still asking is as good.
        let frame = foe.frame(b"size 263168");
        foe.send(&frame);
    }
    wait_until("the end of patience", || host.total(Metric::BulkTimedOut) == 1);
    foe.await_end();
    assert!(host.total(Metric::BulkServed) < 200);
}

#[test]
fn many_that_never_read_are_bounded_and_others_get_their_turn_in_the_end() {
    let times = Times { transfer: SHORT, ..PATIENT };
    let host = host_that_knows_the_stranger(times);
    let members = 1..=5;
    let mut foes = Vec::new();
    for member in members.clone() {
        host.plane.members.lock().insert(MemberId(member));
        foes.extend((0..INBOUND_PER_MEMBER_MAX).map(|_| Foe::proven(&host, MemberId(member))));
    }
    for foe in &mut foes {
        for _ in 0..100 {
            let frame = foe.frame(b"size 263168");
            foe.send(&frame);
        }
    }
    wait_until("all to be cut off", || host.total(Metric::BulkTimedOut) == foes.len() as u64);
    let mut foe = Foe::proven(&host, STRANGER);
    assert_eq!(foe.exchange(b"ab"), Some(b"ba".to_vec()));
}

/// What an asker makes of an answerer that does `wrong` after it has heard the request.
fn ask_a_foe(times: Times, wrong: impl FnOnce(&mut Foe)) -> String {
    let host = Host::start_with(KEY, times);
    let listener = StdTcpListener::bind("127.0.0.1:0").expect("a port");
    host.ask_at(listener.local_addr().expect("bound"), 1, b"request");
    let mut foe = Foe::accept_request(&listener);
    wrong(&mut foe);
    assert_eq!(host.outcome(), (1, None));
    foe.await_end();
    host.counts()
}

#[test]
fn an_answerer_may_be_hostile_too() {
    let failed = |why: &str| format!("{why}bulk_asked 1, bulk_failed 1");
    let wrong = |wrong: &dyn Fn(&mut Foe)| ask_a_foe(PATIENT, wrong);
    for bit in [0, 8, 32, 159, 160, 183] {
        let flip = |foe: &mut Foe| {
            let mut frame = foe.frame(b"response");
            frame[bit / 8] ^= 1 << (bit % 8);
            foe.send(&frame);
            foe.fall_silent();
        };
        let counts = wrong(&flip);
        // A longer length is only noticed when it ends too early.
        assert!(
            counts == failed("bulk_forged 1, ") || (bit < 32 && counts == failed("")),
            "bit {bit}: {counts}"
        );
    }
    let bomb = |foe: &mut Foe| {
        foe.send(&[0xff; FRAME_HEAD_BYTES]);
    };
    assert_eq!(wrong(&bomb), failed("bulk_too_large 1, "));
    let cut = |foe: &mut Foe| {
        let frame = foe.frame(b"response");
        foe.send(&frame[..frame.len() - 1]);
        foe.fall_silent();
    };
    assert_eq!(wrong(&cut), failed(""));
    let mirror = |foe: &mut Foe| {
        let frame = Foe::frame(foe, b"");
        foe.send(&frame);
        foe.send(&frame);
    };
    // An empty response is one; the second was not asked for.
    let host = Host::start();
    let listener = StdTcpListener::bind("127.0.0.1:0").expect("a port");
    host.ask_at(listener.local_addr().expect("bound"), 1, b"request");
    let mut foe = Foe::accept_request(&listener);
    mirror(&mut foe);
    assert_eq!(host.outcome(), (1, Some(vec![])));
    foe.await_end();
    wait_until("the count", || host.total(Metric::BulkForged) == 1);
    assert_eq!(host.counts(), "bulk_forged 1, bulk_asked 1");
}

#[test]
fn an_answerer_may_be_slow_too() {
    let times = Times { transfer: SHORT, ..PATIENT };
    let failed = "bulk_timed_out 1, bulk_asked 1, bulk_failed 1";
    assert_eq!(ask_a_foe(times, |_| {}), failed, "no response");
    let begin = |foe: &mut Foe| {
        let frame = foe.frame(b"response");
        foe.send(&frame[..frame.len() - 1]);
    };
    assert_eq!(ask_a_foe(times, begin), failed, "half a response");
}

#[test]
fn an_answerer_with_a_wrong_hello_hears_no_request() {
    let host = Host::start();
    let listener = StdTcpListener::bind("127.0.0.1:0").expect("a port");
    let to = listener.local_addr().expect("bound");
    for ticket in 0..3 {
        host.ask_at(to, ticket, b"request");
        let mut foe = Foe::accept(&listener);
        assert_eq!(foe.hear(), Some(Heard::Hello));
        let mut hello = Vec::new();
        foe.talk.greet(&mut hello);
        // Its magic, its own name, the asker's name.
        hello[[0, 4, 12][ticket as usize]] ^= 1;
        foe.send(&hello);
        assert_eq!(host.outcome(), (ticket, None));
        assert_eq!(foe.await_end(), 0);
    }
    assert_eq!(host.counts(), "bulk_forged 3, bulk_asked 3, bulk_failed 3");
}
