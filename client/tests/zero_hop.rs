//! The client that knows who holds which key, against servers that do what a test tells them.

mod scripted;

use std::net::SocketAddr;
use std::time::Duration;

use scripted::{Received, Script, Server};
use violet_client::wire::placement::{TableMember, TableShape, encode_page};
use violet_client::{Client, Format, Operation, RetryPolicy, Status, Value};

/// The next server has its turn soon, and the last one all the time that it needs.
fn policy() -> RetryPolicy {
    let waits = [Duration::from_millis(20), Duration::from_secs(30)];
    RetryPolicy { waits: waits.to_vec(), ..RetryPolicy::default() }
}

fn client(servers: &[SocketAddr]) -> Client {
    Client::new(servers.to_vec()).unwrap().with_policy(policy()).with_zero_hop()
}

/// Answers with the table of these members, who hold everything, the first of them first.
fn tell(server: &Server, request: &Received, members: &[SocketAddr]) {
    let Operation::GetPlacement { offset } = request.operation() else {
        panic!("asked for {:?}", request.operation())
    };
    let count = members.len();
    let shape = TableShape { members: count as u16, replicas: count as u8, partitions_log2: 0 };
    let member = |number: u16| TableMember { address: members[usize::from(number)], is_alive: true };
    let mut page = Vec::new();
    encode_page(5, shape, offset, member, |_, place| place as u16, &mut page).unwrap();
    let page: &'static [u8] = page.leak();
    server.send(request, &request.reply(|response| response.value = Some(Value { bytes: page, version: 0 })));
}

/// The next request that is not for the table; those are answered, as often as they come.
fn next(server: &Server, answer: impl Fn(&Server, &Received)) -> Received {
    loop {
        let request = server.receive();
        match request.operation() {
            Operation::GetPlacement { .. } => answer(server, &request),
            _ => return request,
        }
    }
}

#[test]
fn writes_go_where_the_table_says() {
    for format in [Format::Raw, Format::Protobuf] {
        let (holder, listed) = (Server::open(), Server::open());
        let members = [holder.address()];
        let mut client = client(&[listed.address()]).with_format(format);
        let script = Script::play(move || {
            let request = listed.receive();
            tell(&listed, &request, &members);
            for _ in 0..3 {
                let request = holder.receive();
                assert!(matches!(request.operation(), Operation::Put { .. }));
                holder.answer(&request, Status::Success);
            }
            let request = holder.receive();
            assert!(matches!(request.operation(), Operation::Get { .. }));
            holder.answer(&request, Status::NoSuchKey);
        });
        for number in 0..3_u8 {
            client.put(&[number + 1], b"value", 0).unwrap();
        }
        assert_eq!(client.get(b"key").unwrap(), None);
        assert_eq!(client.placement().unwrap().version(), 5);
        script.end();
    }
}

#[test]
fn when_the_first_replica_is_silent_the_next_is_asked_the_same() {
    let (silent, second) = (Server::open(), Server::open());
    let members = [silent.address(), second.address()];
    let mut client = client(&[members[1]]);
    let script = Script::play(move || {
        let request = next(&second, |server, request| tell(server, request, &members));
        let unheard = silent.receive();
        assert_eq!(request.bytes, unheard.bytes, "the id and all else are the same");
        second.answer(&request, Status::Success);
        // The next write begins where somebody answered.
        let request = next(&second, |server, request| tell(server, request, &members));
        second.answer(&request, Status::Success);
    });
    client.put(b"key", b"value", 0).unwrap();
    client.put(b"key", b"other", 0).unwrap();
    script.end();
}

#[test]
fn a_server_that_tells_no_table_is_asked_as_ever() {
    let server = Server::open();
    let mut client = client(&[server.address()]);
    let script = Script::play(move || {
        let refuse = |server: &Server, request: &Received| server.answer(request, Status::UnknownCommand);
        let request = next(&server, refuse);
        assert!(matches!(request.operation(), Operation::Put { .. }));
        server.answer(&request, Status::Success);
    });
    client.put(b"key", b"value", 0).unwrap();
    assert_eq!(client.placement(), None);
    script.end();
}

#[test]
fn nonsense_is_no_table() {
    let server = Server::open();
    let mut client = client(&[server.address()]);
    let script = Script::play(move || {
        let babble = |server: &Server, request: &Received| server.answer_value(request, &[0xff; 100], 0);
        let request = next(&server, babble);
        assert!(matches!(request.operation(), Operation::Remove { .. }));
        server.answer(&request, Status::Success);
    });
    assert!(client.remove(b"key").unwrap());
    assert_eq!(client.placement(), None);
    script.end();
}

#[test]
fn without_a_second_server_only_the_first_replica_is_asked() {
    let (silent, second) = (Server::open(), Server::open());
    let members = [silent.address(), second.address()];
    let waits = [Duration::from_millis(5), Duration::from_millis(5)];
    let policy = RetryPolicy { waits: waits.to_vec(), ..RetryPolicy::default() };
    let mut client = client(&[members[1]]).with_policy(policy).without_second_server();
    let script = Script::play(move || {
        let request = second.receive();
        tell(&second, &request, &members);
        assert_eq!(silent.receive().bytes, silent.receive().bytes);
    });
    client.put(b"key", b"value", 0).unwrap_err();
    script.end();
}
