//! Sockets, receivers and senders: what the kernel steers, loses, joins and cuts.

use super::*;

/// Receives what is waiting in a lane, as text.
fn drain(receiver: &mut Receiver, batch: &mut Batch, found: &mut Vec<String>) {
    let clock = Clock::start();
    let mut more = true;
    while more {
        more = receiver.receive(&clock, batch).0;
        batch.retain(|datagram, truncated| {
            let cut = if truncated { " (cut)" } else { "" };
            found.push(format!("{}{cut}", datagram.bytes.escape_ascii()));
            false
        });
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_kernel_steers_every_datagram_to_its_lane() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let sockets = open(address, Lanes::Steered);
        let client = client(sockets.address);
        let members = sockets.members.expect("steered");
        let mut lanes =
            [sockets.clients, members.peers, members.gossip].map(|s| Receiver::new(s, 4, Means::Batched));
        let sent: [&[u8]; 9] =
            [b"VltP", b"VltP1", b"", b"VltG2", b"ab", b"VltQ", b"VltG", b"xVltP", b"0123456789"];
        for bytes in sent {
            client.send(bytes).expect("sent");
        }
        let mut batch = Batch::new(4, SLOT_BYTES).expect("memory");
        let found = std::cell::RefCell::new([vec![], vec![], vec![]]);
        let lanes = std::cell::RefCell::new((&mut lanes, &mut batch));
        wait_until("all datagrams", || {
            let (lanes, batch) = &mut *lanes.borrow_mut();
            let found = &mut *found.borrow_mut();
            lanes.iter_mut().zip(found.iter_mut()).for_each(|(lane, found)| drain(lane, batch, found));
            found.iter().map(Vec::len).sum::<usize>() == sent.len()
        });
        let [clients, peers, gossip] = found.into_inner();
        assert_eq!(clients, ["", "ab", "VltQ", "xVltP", "0123456789"]);
        assert_eq!(peers, ["VltP", "VltP1"]);
        assert_eq!(gossip, ["VltG2", "VltG"]);
    }
}

#[test]
fn replies_of_all_send_sockets_have_the_service_port_as_source() {
    for lanes in [Lanes::Steered, Lanes::Shared] {
        let sockets = open("127.0.0.1:0", lanes);
        let client = client(sockets.address);
        for senders in &sockets.senders {
            for lane in Lane::ALL {
                let to = client.local_addr().expect("bound");
                senders.of(lane).send_to(b"reply", to).expect("sent");
                // A connected socket takes datagrams from nowhere but the service port.
                let mut buffer = [0; 16];
                assert_eq!(client.recv(&mut buffer).expect("the reply"), 5, "{lanes:?} {lane:?}");
            }
        }
    }
}

#[test]
fn a_taken_port_is_an_error() {
    let first = open("127.0.0.1:0", Lanes::Steered);
    for lanes in [Lanes::Steered, Lanes::Shared] {
        let (address, sharing) = (first.address, Sharing::default());
        let plan = Plan { address, lanes, sharing, threads: 1, receive_bytes: 65_536, send_bytes: 65_536 };
        let error = Sockets::open(plan).expect_err("somebody is there");
        assert!(matches!(error, OpenError::Taken(address) if address == first.address));
        assert_eq!(error.to_string(), format!("{} is taken", first.address));
    }
}

#[test]
fn datagrams_carry_their_time_and_cut_ones_are_flagged() {
    for (lanes, means) in [(Lanes::Steered, Means::Batched), (Lanes::Shared, Means::Plain)] {
        let sockets = open("127.0.0.1:0", lanes);
        let clock = Clock::start();
        let client = client(sockets.address);
        let before = clock.now();
        for bytes in [3, 64, 100, 0] {
            client.send(&[b'x'; 100][..bytes]).expect("sent");
        }
        let mut receiver = Receiver::new(sockets.clients, 8, means);
        let mut batch = Batch::new(8, 80).expect("memory");
        let mut seen = Vec::new();
        let received = std::cell::RefCell::new((&mut receiver, &mut batch, &mut seen));
        wait_until("four datagrams", || {
            let (receiver, batch, seen) = &mut *received.borrow_mut();
            receiver.receive(&clock, batch);
            batch.retain(|datagram, is_cut| {
                // The kernel's wall clock and our steady one may drift apart by very little.
                let slack = Duration::from_millis(50);
                assert!(
                    before - slack <= datagram.received_at && datagram.received_at <= clock.now() + slack
                );
                assert_eq!(datagram.from, client.local_addr().expect("bound"));
                seen.push((datagram.bytes.len(), is_cut));
                false
            });
            seen.len() == 4
        });
        assert_eq!(seen, [(3, false), (64, false), (80, true), (0, false)], "{lanes:?}");
    }
}

#[cfg(target_os = "linux")]
/// A receiver uses its headers again and again, and the kernel writes to them.
#[cfg(target_os = "linux")]
#[test]
fn batches_are_received_whole_whichever_memory_they_go_to() {
    let sockets = open("127.0.0.1:0", Lanes::Steered);
    let client = client(sockets.address);
    let mut receiver = Receiver::new(sockets.clients, 4, Means::Batched);
    let clock = Clock::start();
    let mut batches = [(4, SLOT_BYTES), (4, SLOT_BYTES), (4, 64), (2, SLOT_BYTES)]
        .map(|(slots, slot_bytes)| Batch::new(slots, slot_bytes).expect("memory"));
    for (turn, &(index, count)) in
        [(0, 4), (0, 1), (0, 3), (1, 4), (0, 2), (2, 4), (2, 3), (3, 2), (0, 4), (3, 1), (1, 1)]
            .iter()
            .enumerate()
    {
        // Nothing waits: the kernel may have looked at a header all the same.
        assert_eq!(receiver.receive(&clock, &mut batches[index]), (false, 0));
        let sent: Vec<Vec<u8>> = (0..count).map(|number| vec![number as u8; 10 * turn + number]).collect();
        sent.iter().for_each(|bytes| assert_eq!(client.send(bytes).expect("sent"), bytes.len()));
        let batch = &mut batches[index];
        let mut found = Vec::new();
        while found.len() < count {
            receiver.receive(&clock, batch);
            batch.retain(|datagram, truncated| {
                let port = client.local_addr().expect("bound").port();
                assert_eq!(datagram.from.port(), port, "turn {turn}");
                found.push((datagram.bytes.to_vec(), truncated));
                false
            });
        }
        let room = if index == 2 { 64 } else { SLOT_BYTES };
        let expected = sent.iter().map(|bytes| (bytes[..bytes.len().min(room)].to_vec(), room < bytes.len()));
        assert_eq!(found, expected.collect::<Vec<_>>(), "turn {turn}");
    }
}

#[test]
fn the_kernels_losses_are_counted() {
    let address = "127.0.0.1:0".parse().expect("an address");
    let (lanes, sharing) = (Lanes::Steered, Sharing::default());
    let plan = Plan { address, lanes, sharing, threads: 1, receive_bytes: 16 * 1024, send_bytes: 65_536 };
    let sockets = Sockets::open(plan).expect("free sockets");
    assert_eq!(sockets.granted.receive_bytes, [16 * 1024; 3]);
    let client = client(sockets.address);
    let (mut receiver, clock) = (Receiver::new(sockets.clients, 64, Means::Batched), Clock::start());
    let mut batch = Batch::new(64, SLOT_BYTES).expect("memory");
    let mut sent = 0;
    for _ in 0..500 {
        client.send(&[0; 400]).expect("sent");
        sent += 1;
    }
    let (mut received, mut lost) = (0, 0);
    let deadline = std::time::Instant::now() + PATIENCE;
    // The count rides on the next datagram that finds room, so one more is sent each time.
    while received + lost < sent {
        assert!(std::time::Instant::now() < deadline, "{received} received, {lost} lost of {sent}");
        let (_, lost_now) = receiver.receive(&clock, &mut batch);
        received += batch.len() as u64;
        lost += lost_now;
        if batch.is_empty() {
            client.send(&[0; 400]).expect("sent");
            sent += 1;
        }
        batch.clear();
    }
    assert_eq!(received + lost, sent);
    assert!(0 < lost);
}

/// Every way to send, and the lanes to send by.
const WAYS: [(Lanes, Means); 4] = [
    (Lanes::Steered, Means::Segmented),
    (Lanes::Steered, Means::Batched),
    (Lanes::Steered, Means::Plain),
    (Lanes::Shared, Means::Plain),
];

#[test]
fn a_datagram_that_cannot_be_sent_does_not_take_others_down() {
    for (lanes, means) in WAYS {
        let mut sockets = open("127.0.0.1:0", lanes);
        let client = client(sockets.address);
        let to = client.local_addr().expect("bound");
        let metrics = Metrics::default();
        let mut outbox = Outbox::new(metrics.sheet());
        let mut sender = Sender::new(sockets.senders.remove(0), means);
        let nowhere = SocketAddr::new(to.ip(), 0);
        for number in 0..150_u32 {
            outbox.send(Lane::Client, if number % 50 < 5 { nowhere } else { to }, |buffer| {
                buffer.extend_from_slice(&number.to_be_bytes());
            });
            if number == 70 {
                outbox.send(Lane::Forwarding, to, |buffer| buffer.resize(buffer.len() + 65_508, 0));
            }
        }
        sender.flush(&mut outbox);
        assert!(outbox.is_empty());
        let mut buffer = [0; 16];
        for number in (0..150_u32).filter(|number| 5 <= number % 50) {
            assert_eq!(client.recv(&mut buffer).expect("the others"), 4);
            assert_eq!(buffer[..4], number.to_be_bytes(), "{lanes:?} {means:?}");
        }
        let totals =
            [Metric::SendDatagrams, Metric::SendBytes, Metric::SendsFailed].map(|m| metrics.total(m));
        assert_eq!(totals, [135, 135 * 4, 16], "{lanes:?} {means:?}");
    }
}

#[test]
fn datagrams_of_all_lengths_arrive_whole_whatever_they_leave_with() {
    for (lanes, means) in WAYS {
        let mut sockets = open("127.0.0.1:0", lanes);
        let clients = [client(sockets.address), client(sockets.address)];
        let metrics = Metrics::default();
        let mut outbox = Outbox::new(metrics.sheet());
        let mut sender = Sender::new(sockets.senders.remove(0), means);
        let lengths =
            [17, 17, 17, 5, 17, 0, 17, 0, 0, 1_400, 1_400, 1_399, 1_401, 1_401, 9_000, 1, 1, 2, 2, 1];
        for length in lengths.repeat(4) {
            for client in &clients {
                let to = client.local_addr().expect("bound");
                // Every byte tells the length, so that a wrong cut shows.
                outbox.send(Lane::Client, to, |buffer| buffer.resize(buffer.len() + length, length as u8));
            }
        }
        sender.flush(&mut outbox);
        let mut expected = lengths.repeat(4);
        expected.sort_unstable();
        let mut buffer = vec![0; 65_536];
        for client in &clients {
            let mut arrived: Vec<usize> = (0..expected.len())
                .map(|_| {
                    let bytes = client.recv(&mut buffer).expect("a datagram");
                    assert!(buffer[..bytes].iter().all(|byte| *byte == bytes as u8));
                    bytes
                })
                .collect();
            arrived.sort_unstable();
            assert_eq!(arrived, expected, "{lanes:?} {means:?}");
        }
        assert_eq!(metrics.total(Metric::SendDatagrams), expected.len() as u64 * 2);
        assert_eq!(metrics.total(Metric::SendsFailed), 0);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn frames_to_one_member_share_datagrams_and_replies_to_one_client_do_not() {
    let sockets = open("127.0.0.1:0", Lanes::Steered);
    let receivers = [client(sockets.address), client(sockets.address)];
    let metrics = Metrics::default();
    let mut outbox = Outbox::new(metrics.sheet());
    let mut sender = Sender::new(sockets.senders[0].clone(), Means::Segmented);
    for lane in [Lane::Replication, Lane::Client] {
        for length in [100, 200, 1_200, 1_000, 9_000] {
            for receiver in &receivers {
                let to = receiver.local_addr().expect("bound");
                outbox.send(lane, to, |buffer| buffer.resize(buffer.len() + length, 1));
            }
        }
        sender.flush(&mut outbox);
        let mut buffer = [0; 16_384];
        let expected = match lane {
            Lane::Client => vec![100, 200, 1_000, 1_200, 9_000],
            _ => vec![1_200, 1_300, 9_000],
        };
        for receiver in &receivers {
            let arrived = expected.iter().map(|_| receiver.recv(&mut buffer).expect("a datagram"));
            let mut arrived: Vec<usize> = arrived.collect();
            arrived.sort_unstable();
            assert_eq!(arrived, expected, "{lane:?}");
        }
    }
    assert_eq!(metrics.total(Metric::SendDatagrams), 2 * (3 + 5));
}

/// Takes this many datagrams and forgets them.
#[cfg(target_os = "linux")]
fn wait_until_received(receiver: &mut Receiver, batch: &mut Batch, count: usize) {
    let state = std::cell::RefCell::new((receiver, batch, 0));
    wait_until("some datagrams", || {
        let (receiver, batch, seen) = &mut *state.borrow_mut();
        receiver.receive(&Clock::start(), batch);
        *seen += batch.len();
        batch.clear();
        *seen == count
    });
}

#[cfg(target_os = "linux")]
#[test]
fn bursts_that_travel_as_one_message_are_cut_into_what_was_sent() {
    let (from, to) = (open("127.0.0.1:0", Lanes::Steered), open("127.0.0.1:0", Lanes::Steered));
    let (clock, metrics) = (Clock::start(), Metrics::default());
    let mut sender = Sender::new(from.senders[0].clone(), Means::Segmented);
    let mut receiver = Receiver::new(to.clients, 4, Means::Segmented);
    let mut batch = Batch::new(4, SLOT_BYTES).expect("memory");
    let mut outbox = Outbox::new(metrics.sheet());
    // Receptions without a word on segments come first, in every slot: they must leave room for it.
    for count in [4, 1] {
        (0..count).for_each(|_| assert_eq!(from.clients.send_to(b"x", to.address).expect("sent"), 1));
        wait_until_received(&mut receiver, &mut batch, count);
    }
    let lengths = [[17; 50].as_slice(), &[5, 17, 17, 0, 0, 1_400, 1_400, 1_399, 9_000, 1, 1]].concat();
    for (number, length) in lengths.iter().enumerate() {
        // Every byte tells the datagram's number, so that a wrong cut shows.
        let fill = |buffer: &mut Vec<u8>| buffer.resize(buffer.len() + length, number as u8);
        outbox.send(Lane::Client, to.address, fill);
    }
    sender.flush(&mut outbox);
    let (receptions, mut arrived) = (std::cell::Cell::new(0), Vec::new());
    let state = std::cell::RefCell::new((&mut receiver, &mut batch, &mut arrived));
    wait_until("all datagrams", || {
        let (receiver, batch, arrived) = &mut *state.borrow_mut();
        receiver.receive(&clock, batch);
        receptions.set(receptions.get() + usize::from(!batch.is_empty()));
        for datagram in batch.datagrams() {
            assert_eq!(datagram.from, from.address);
            assert!(datagram.bytes.windows(2).all(|pair| pair[0] == pair[1]));
            arrived.push(datagram.bytes.len());
        }
        batch.clear();
        arrived.len() == lengths.len()
    });
    let receptions = receptions.get();
    assert!(receptions <= 4, "many came together: {receptions} receptions of at most 4 messages each");
    let mut expected = lengths;
    arrived.sort_unstable();
    expected.sort_unstable();
    assert_eq!(arrived, expected);
}

#[cfg(target_os = "linux")]
#[test]
fn what_the_kernel_will_not_cut_is_sent_singly() {
    let sockets = open("127.0.0.1:0", Lanes::Steered);
    let client = client(sockets.address);
    let to = client.local_addr().expect("bound");
    let mut outbox = Outbox::new(Metrics::default().sheet());
    for number in 0..64_u8 {
        outbox.send(Lane::Client, to, |buffer| buffer.resize(buffer.len() + 1_200, number));
    }
    let mut sender = udp::BatchSender::new(udp::Segmentation::TOO_MUCH);
    let sent = sender.send_lane(sockets.senders[0].of(Lane::Client), Lane::Client, &outbox);
    assert_eq!((sent.datagrams, sent.bytes, sent.failed), (64, 64 * 1_200, 0));
    assert!(!sender.is_segmenting());
    let mut buffer = [0; 2_000];
    for number in 0..64_u8 {
        assert_eq!(client.recv(&mut buffer).expect("a datagram"), 1_200);
        assert!(buffer[..1_200].iter().all(|byte| *byte == number));
    }
}
