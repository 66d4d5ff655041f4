//! The blocking client against servers that lose, double, forge and redirect.

mod scripted;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use scripted::{Script, Server};
use violet_client::wire::{Key, Operation, Status, Value};
use violet_client::{Client, Context, Error, Format, RetryPolicy, SiblingValues, Stored};

/// Retries at once, then waits as long as it takes.
fn patient() -> RetryPolicy {
    let waits = [Duration::from_millis(20), Duration::from_secs(30)];
    RetryPolicy { waits: waits.to_vec(), ..RetryPolicy::default() }
}

/// Sends once and waits as long as it takes.
fn once() -> RetryPolicy {
    RetryPolicy { overload_rounds_max: 3, ..RetryPolicy::once(Duration::from_secs(30)) }
}

fn client(servers: &[SocketAddr], policy: RetryPolicy) -> Client {
    Client::new(servers.to_vec()).unwrap().with_policy(policy)
}

fn stored(bytes: &[u8], version: i32) -> Stored {
    Stored { bytes: bytes.to_vec(), version }
}

/// Nothing can be sent there: it is a broadcast address, and the socket is not allowed to broadcast.
fn unreachable() -> SocketAddr {
    ([255, 255, 255, 255], 9).into()
}

#[test]
fn a_lost_datagram_is_sent_again_unchanged() {
    for format in [Format::Raw, Format::Protobuf] {
        let server = Server::open();
        let mut client = client(&[server.address()], patient()).with_format(format);
        let script = Script::play(move || {
            let lost = server.receive();
            let again = server.receive();
            assert_eq!(lost.bytes, again.bytes);
            assert_eq!(lost.from, again.from);
            assert_eq!(again.format(), format);
            let key = Key::parse(&again_key(format)).unwrap();
            let version = if format == Format::Raw { 0 } else { 5 };
            assert_eq!(again.operation(), Operation::Put { key, value: Value { bytes: b"value", version } });
            server.answer(&again, Status::Success);
        });
        client.put(b"key", b"value", 5).unwrap();
        script.end();
    }
}

fn again_key(format: Format) -> Vec<u8> {
    let mut key = b"key".to_vec();
    if format == Format::Raw {
        key.resize(32, 0);
    }
    key
}

#[test]
fn foreign_replies_are_not_taken_for_ours() {
    for format in [Format::Raw, Format::Protobuf] {
        let server = Server::open();
        let mut client = client(&[server.address()], once()).with_format(format);
        let script = Script::play(move || {
            let request = server.receive();
            server.send(&request, &request.reply(|response| response.id.0[15] ^= 1));
            server.send(&request, b"");
            server.send(&request, &request.bytes[..16]);
            if format == Format::Protobuf {
                let mut damaged = request.reply(|response| response.status = Status::NoSuchKey);
                damaged[21] ^= 0x01;
                server.send(&request, &damaged);
            }
            server.answer_value(&request, b"ours", 0);
        });
        assert_eq!(client.get(b"key").unwrap(), Some(stored(b"ours", 0)));
        script.end();
    }
}

#[test]
fn any_member_may_reply() {
    let (asked, other) = (Server::open(), Server::open());
    let mut client = client(&[asked.address()], once());
    let script = Script::play(move || {
        let request = asked.receive();
        other.answer_value(&request, b"from another", -3);
    });
    assert_eq!(client.get(b"key").unwrap(), Some(stored(b"from another", -3)));
    script.end();
}

#[test]
fn a_second_reply_does_not_answer_the_next_request() {
    let server = Server::open();
    let mut client = client(&[server.address()], once());
    let script = Script::play(move || {
        let first = server.receive();
        server.answer_value(&first, b"one", 1);
        server.answer_value(&first, b"one", 1);
        let second = server.receive();
        assert_ne!(first.id(), second.id());
        server.answer_value(&first, b"one", 1);
        server.answer_value(&second, b"two", 2);
    });
    assert_eq!(client.get(b"key").unwrap(), Some(stored(b"one", 1)));
    assert_eq!(client.get(b"key").unwrap(), Some(stored(b"two", 2)));
    script.end();
}

#[test]
fn silence_is_a_time_out() {
    let server = Server::open();
    let policy = RetryPolicy { waits: vec![Duration::from_millis(1); 3], ..RetryPolicy::default() };
    let mut client = client(&[server.address()], policy);
    match client.remove(b"key") {
        Err(Error::TimedOut { server: asked, attempts: 3 }) => assert_eq!(asked, server.address()),
        other => panic!("{other:?}"),
    }
}

/// Whichever server is asked first keeps silent; the other must get the very same datagram.
#[test]
fn a_second_server_is_asked_the_same() {
    let lost = Arc::new(Mutex::new(None));
    let servers = [Server::open(), Server::open()];
    let addresses = [servers[0].address(), servers[1].address()];
    let policy = RetryPolicy { waits: vec![Duration::from_millis(50); 20], ..RetryPolicy::default() };
    let scripts = servers.map(|server| {
        let lost = Arc::clone(&lost);
        Script::play(move || {
            let request = server.receive();
            let mut lost = lost.lock().unwrap();
            match &*lost {
                None => *lost = Some(request.bytes),
                Some(bytes) => {
                    assert_eq!(*bytes, request.bytes);
                    server.answer(&request, Status::NoSuchKey);
                }
            }
        })
    });
    assert!(!client(&addresses, policy).remove(b"key").unwrap());
    scripts.into_iter().for_each(Script::end);
}

#[test]
fn a_server_out_of_reach_is_passed_over() {
    const GETS: usize = 20;
    let server = Server::open();
    let addresses = [unreachable(), server.address()];
    let script = Script::play(move || {
        for _ in 0..GETS {
            server.answer_value(&server.receive(), b"here", 0);
        }
    });
    let mut both = client(&addresses, once());
    for _ in 0..GETS {
        assert_eq!(both.get(b"key").unwrap(), Some(stored(b"here", 0)));
    }
    script.end();
    let mut strict = client(&addresses[..1], once()).without_second_server();
    assert!(matches!(strict.get(b"key"), Err(Error::Io { server, .. }) if server == unreachable()));
}

#[test]
fn overload_is_waited_out_with_a_new_id() {
    let server = Server::open();
    let mut client = client(&[server.address()], once());
    let script = Script::play(move || {
        let refused = server.receive();
        let overload = |wait_ms| {
            refused.reply(|response| {
                response.status = Status::Overload;
                response.overload_wait_ms = Some(wait_ms);
            })
        };
        server.send(&refused, &overload(1));
        let again = server.receive();
        assert_ne!(refused.id(), again.id());
        assert_eq!(refused.operation(), again.operation());
        server.answer(&again, Status::Success);

        let refused = server.receive();
        let give_up = refused.reply(|response| {
            response.status = Status::Overload;
            response.overload_wait_ms = Some(-1);
        });
        server.send(&refused, &give_up);
    });
    client.put(b"key", b"value", 0).unwrap();
    assert!(matches!(client.put(b"key", b"value", 0), Err(Error::Overloaded(_))));
    script.end();
}

#[test]
fn answers_become_typed_results() {
    let server = Server::open();
    let address = server.address();
    let mut client = client(&[address], once());
    let script = Script::play(move || {
        server.answer(&server.receive(), Status::OutOfSpace);
        server.answer(&server.receive(), Status::NoSuchKey);
        server.answer(&server.receive(), Status::NoSuchKey);
        // An empty value may be left out.
        server.answer(&server.receive(), Status::Success);
        let request = server.receive();
        assert_eq!(request.operation(), Operation::GetPid);
        server.send(&request, &request.reply(|response| response.pid = Some(899)));
        let request = server.receive();
        assert_eq!(request.operation(), Operation::GetMembershipCount);
        server.send(&request, &request.reply(|response| response.membership_count = Some(20)));
        let request = server.receive();
        assert_eq!(request.operation(), Operation::GetMembershipList);
        server.answer_value(&request, b"127.0.0.1:1 alive\n", 0);
        let request = server.receive();
        assert_eq!(request.operation(), Operation::GetStats);
        server.answer_value(&request, b"{}", 0);
        for expected in [Operation::Wipeout, Operation::Shutdown, Operation::IsAlive] {
            let request = server.receive();
            assert_eq!(request.operation(), expected);
            server.answer(&request, Status::Success);
        }
        server.answer(&server.receive(), Status::UnknownCommand);
        server.answer(&server.receive(), Status::Success);
    });
    let refused = client.put(b"key", b"value", 0);
    assert!(matches!(refused, Err(Error::Refused { status: Status::OutOfSpace, .. })));
    assert_eq!(client.get(b"key").unwrap(), None);
    assert!(!client.remove(b"key").unwrap());
    assert_eq!(client.get(b"key").unwrap(), Some(stored(b"", 0)));
    assert_eq!(client.pid(address).unwrap(), 899);
    assert_eq!(client.membership_count(address).unwrap(), 20);
    assert_eq!(client.membership_list(address).unwrap(), "127.0.0.1:1 alive\n");
    assert_eq!(client.stats(address).unwrap(), "{}");
    client.wipeout(address).unwrap();
    client.shutdown(address).unwrap();
    client.alive(address).unwrap();
    client.alive(address).unwrap();
    assert!(matches!(client.pid(address), Err(Error::Incomplete(_))));
    script.end();
}

/// In both formats: what was read is handed back, and the second server is asked the same as with a PUT.
#[test]
fn siblings_come_with_a_context_that_goes_back() {
    for format in [Format::Raw, Format::Protobuf] {
        let server = Server::open();
        let mut client = client(&[server.address()], once()).with_format(format);
        let script = Script::play(move || {
            let key = Key::parse(&again_key(format)).unwrap();
            let request = server.receive();
            assert_eq!(request.operation(), Operation::GetSiblings { key });
            server.answer_value(&request, b"\x03\0ctx\x02\x01\0\x07\0\0\0a\0\0\xff\xff\xff\xff", 0);
            let request = server.receive();
            let context = Context::parse(b"ctx").unwrap();
            let version = if format == Format::Raw { 0 } else { 5 };
            let value = Value { bytes: b"both", version };
            assert_eq!(request.operation(), Operation::PutWithContext { key, context, value });
            server.answer_value(&request, b"\x03\0new\0", 0);
            server.answer(&server.receive(), Status::NoSuchKey);
            server.answer(&server.receive(), Status::UnknownCommand);
            // A success that leaves the context out, and one that is cut.
            server.answer(&server.receive(), Status::Success);
            server.answer_value(&server.receive(), b"\x03\0ctx\x01", 0);
        });
        let expected =
            SiblingValues { values: vec![stored(b"a", 7), stored(b"", -1)], context: b"ctx".to_vec() };
        assert_eq!(client.get_siblings(b"key").unwrap(), Some(expected));
        assert_eq!(client.put_with_context(b"key", b"both", 5, b"ctx").unwrap(), b"new");
        assert_eq!(client.get_siblings(b"key").unwrap(), None);
        let refused = client.get_siblings(b"key");
        assert!(matches!(refused, Err(Error::Refused { status: Status::UnknownCommand, .. })));
        assert!(matches!(client.put_with_context(b"key", b"", 0, b""), Err(Error::Incomplete(_))));
        assert!(matches!(client.get_siblings(b"key"), Err(Error::Incomplete(_))));
        script.end();
    }
}

/// A server that is told to leave answers two more times and then no more.
#[test]
fn a_server_that_leaves_is_waited_for() {
    let server = Server::open();
    let address = server.address();
    let mut client = client(&[address], once());
    let script = Script::play(move || {
        let request = server.receive();
        assert_eq!(request.operation(), Operation::Leave);
        server.answer(&request, Status::Success);
        for status in [Status::Success, Status::Overload] {
            let request = server.receive();
            assert_eq!(request.operation(), Operation::IsAlive);
            server.answer(&request, status);
        }
        // The socket stays open, so that nobody else gets its port, until the last attempt.
        let attempts = [server.receive(), server.receive(), server.receive()];
        assert!(attempts.iter().all(|attempt| attempt.bytes == attempts[0].bytes));
    });
    client.leave(address).unwrap();
    let mut answers = 0;
    assert!(client.wait_until_gone(address, Duration::from_secs(60), |_| answers += 1).unwrap());
    assert_eq!(answers, 2);
    script.end();
}

#[test]
fn a_server_that_stays_is_not_gone() {
    let server = Server::open();
    let address = server.address();
    let mut client = client(&[address], once());
    let script = Script::play(move || server.answer(&server.receive(), Status::Success));
    assert!(!client.wait_until_gone(address, Duration::ZERO, |_| {}).unwrap());
    script.end();
    let unknown = client.wait_until_gone(unreachable(), Duration::ZERO, |_| {});
    assert!(matches!(unknown, Err(Error::Io { .. })));
}

#[test]
fn the_raw_numbers_arrive_as_numbers() {
    let server = Server::open();
    let address = server.address();
    let mut client = client(&[address], once()).with_format(Format::Raw);
    let script = Script::play(move || {
        let request = server.receive();
        server.send(&request, &request.reply(|response| response.pid = Some(0x0102_0304)));
        let request = server.receive();
        server.send(&request, &request.reply(|response| response.membership_count = Some(3)));
    });
    assert_eq!(client.pid(address).unwrap(), 0x0102_0304);
    assert_eq!(client.membership_count(address).unwrap(), 3);
    script.end();
}

/// One of three cannot be reached; the others answer in the other order, through each other's sockets.
#[test]
fn many_servers_are_asked_at_once() {
    let (first, last) = (Server::open(), Server::open());
    let addresses = [first.address(), unreachable(), last.address()];
    let script = Script::play(move || {
        let (to_first, to_last) = (first.receive(), last.receive());
        first.send(&to_last, &to_last.reply(|response| response.pid = Some(3)));
        last.send(&to_first, &to_first.reply(|response| response.pid = Some(1)));
    });
    let results = client(&addresses, once()).ask_each(&addresses, Operation::GetPid);
    match &results[..] {
        [Ok(one), Err(Error::Io { server, .. }), Ok(three)] => {
            assert_eq!((one.pid, *server, three.pid), (Some(1), unreachable(), Some(3)));
        }
        other => panic!("{other:?}"),
    }
    script.end();
}

#[test]
fn what_cannot_be_sent_is_refused_before_it_is() {
    let mut client = client(&[unreachable()], once());
    assert!(matches!(client.get(b""), Err(Error::KeyLength(0))));
    assert!(matches!(client.get(&[1; 33]), Err(Error::KeyLength(33))));
    assert!(matches!(client.put(b"key", &[0; 65_500], 0), Err(Error::ValueLength(65_500))));
    let long_context = client.put_with_context(b"key", b"", 0, &[0; 1_001]);
    assert!(matches!(long_context, Err(Error::ContextLength(1_001))));
    let long_value = client.put_with_context(b"key", &[0; 8_999], 0, &[0; 1_000]);
    assert!(matches!(long_value, Err(Error::ValueWithContextLength(10_001))));
    let just_fits = client.put_with_context(b"key", &[0; 8_998], 0, &[0; 1_000]);
    assert!(matches!(just_fits, Err(Error::Io { .. })));
    assert!(matches!(Client::new(Vec::new()), Err(Error::NoServers)));
}
