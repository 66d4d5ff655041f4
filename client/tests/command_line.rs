//! The command line from outside: arguments and standard input in; standard output, standard error and
//! exit code out.

mod scripted;

use std::io::Write;
use std::net::UdpSocket;
use std::process::{Command, Stdio};

use expect_test::{Expect, expect};
use scripted::{Script, Server};
use violet_client::wire::{Context, Key, Operation, Status, Value};

/// Runs the program and shows all that came out of it. `SERVER` stands for the scripted server.
fn run(server: &str, arguments: &[&str], input: &[u8]) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_violet-client"))
        .args(arguments.iter().map(|argument| argument.replace("SERVER", server)))
        .env_remove("VIOLET_SERVERS")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let [out, err] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).replace(server, "SERVER"));
    format!("out: {out:?}\nerr: {err:?}\nexit: {}\n", output.status.code().unwrap())
}

/// Runs the program against a server that plays a script.
fn check(arguments: &[&str], input: &[u8], script: impl FnOnce(Server) + Send + 'static, expected: Expect) {
    let server = Server::open();
    let address = server.address().to_string();
    let script = Script::play(move || script(server));
    let mut all = vec!["--servers", "SERVER", "--timeout-ms", "60000"];
    all.extend(arguments);
    let shown = run(&address, &all, input);
    script.end();
    expected.assert_eq(&shown);
}

fn stores(value: &'static [u8], version: i32) -> impl FnOnce(Server) + Send + 'static {
    move |server| {
        let request = server.receive();
        let key = Key::parse(b"key").unwrap();
        let value = Value { bytes: value, version };
        assert_eq!(request.operation(), Operation::Put { key, value });
        server.answer(&request, Status::Success);
    }
}

fn answers(status: Status) -> impl FnOnce(Server) + Send + 'static {
    move |server| server.answer(&server.receive(), status)
}

#[test]
fn a_value_comes_from_an_argument_a_file_or_standard_input() {
    let nothing_said = || {
        expect![[r#"
            out: ""
            err: ""
            exit: 0
        "#]]
    };
    check(&["put", "key", "value"], b"", stores(b"value", 0), nothing_said());
    check(&["put", "key", "-7", "--version", "-1"], b"", stores(b"-7", -1), nothing_said());
    check(&["put", "key", "-"], b"a\nb\0\xff", stores(b"a\nb\0\xff", 0), nothing_said());
    check(&["put", "key"], b"", stores(b"", 0), nothing_said());
    check(&["put", "--key-hex", "6B6579", "value"], b"", stores(b"value", 0), nothing_said());
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripted/mod.rs");
    let contents = include_bytes!("scripted/mod.rs");
    check(&["put", "key", "--file", file], b"", stores(contents, 0), nothing_said());
}

#[test]
fn a_value_is_written_as_it_is() {
    let found = |server: Server| server.answer_value(&server.receive(), b"a\nb", -1);
    check(
        &["get", "key"],
        b"",
        found,
        expect![[r#"
            out: "a\nb"
            err: ""
            exit: 0
        "#]],
    );
    check(
        &["--json", "get", "key"],
        b"",
        found,
        expect![[r#"
            out: "{\"key\":\"key\",\"outcome\":\"success\",\"value\":\"a\\nb\",\"version\":-1}\n"
            err: ""
            exit: 0
        "#]],
    );
    check(
        &["--json", "get", "key"],
        b"",
        |server| server.answer_value(&server.receive(), b"\xff\0", 0),
        expect![[r#"
            out: "{\"key\":\"key\",\"outcome\":\"success\",\"value_hex\":\"ff00\",\"version\":0}\n"
            err: ""
            exit: 0
        "#]],
    );
}

#[test]
fn a_missing_key_is_1() {
    for command in ["get", "remove", "siblings"] {
        check(
            &[command, "key"],
            b"",
            answers(Status::NoSuchKey),
            expect![[r#"
                out: ""
                err: "violet-client: no such key\n"
                exit: 1
            "#]],
        );
    }
    check(
        &["--json", "remove", "key"],
        b"",
        answers(Status::NoSuchKey),
        expect![[r#"
            out: "{\"error\":\"no such key\",\"key\":\"key\",\"outcome\":\"no such key\"}\n"
            err: ""
            exit: 1
        "#]],
    );
}

#[test]
fn a_refusal_is_4_and_says_why() {
    check(
        &["put", "key", "value"],
        b"",
        answers(Status::OutOfSpace),
        expect![[r#"
            out: ""
            err: "violet-client: SERVER answered: out of space\n"
            exit: 4
        "#]],
    );
    check(
        &["pid"],
        b"",
        answers(Status::UnknownCommand),
        expect![[r#"
            out: ""
            err: "violet-client: SERVER answered: unknown command\n"
            exit: 4
        "#]],
    );
}

#[test]
fn silence_is_3() {
    let server = Server::open();
    let arguments = ["--servers", "SERVER", "--timeout-ms", "1", "remove", "key"];
    expect![[r#"
        out: ""
        err: "violet-client: no reply from SERVER\n"
        exit: 3
    "#]]
    .assert_eq(&run(&server.address().to_string(), &arguments, b""));
}

#[test]
fn questions_about_servers_give_a_line_each() {
    check(
        &["alive"],
        b"",
        answers(Status::UnknownCommand),
        expect![[r#"
            out: "SERVER alive\n"
            err: ""
            exit: 0
        "#]],
    );
    check(
        &["--format", "raw", "pid"],
        b"",
        |server| {
            let request = server.receive();
            server.send(&request, &request.reply(|response| response.pid = Some(899)));
        },
        expect![[r#"
            out: "SERVER 899\n"
            err: ""
            exit: 0
        "#]],
    );
    let count = |server: Server| {
        let request = server.receive();
        server.send(&request, &request.reply(|response| response.membership_count = Some(20)));
    };
    check(
        &["members", "--one"],
        b"",
        count,
        expect![[r#"
            out: "SERVER 20\n"
            err: ""
            exit: 0
        "#]],
    );
    check(
        &["members", "--json"],
        b"",
        count,
        expect![[r#"
            out: "{\"members\":20,\"outcome\":\"success\",\"server\":\"SERVER\"}\n"
            err: ""
            exit: 0
        "#]],
    );
    check(
        &["list"],
        b"",
        |server| server.answer_value(&server.receive(), b"a:1 alive\nb:2 down\n", 0),
        expect![[r#"
            out: "a:1 alive\nb:2 down\n"
            err: ""
            exit: 0
        "#]],
    );
    let stats = |server: Server| server.answer_value(&server.receive(), b"{\"gets\": 7,\n\"puts\": 1}\n", 0);
    check(
        &["stats"],
        b"",
        stats,
        expect![[r#"
            out: "SERVER {\"gets\": 7, \"puts\": 1}\n"
            err: ""
            exit: 0
        "#]],
    );
    check(
        &["stats", "--json"],
        b"",
        stats,
        expect![[r#"
            out: "{\"outcome\":\"success\",\"server\":\"SERVER\",\"stats\":{\"gets\":7,\"puts\":1}}\n"
            err: ""
            exit: 0
        "#]],
    );
}

/// One server of two cannot be reached: the other one is wiped all the same, and the exit code tells.
#[test]
fn all_servers_are_wiped() {
    let server = Server::open();
    let address = server.address().to_string();
    let script = Script::play(move || {
        let request = server.receive();
        assert_eq!(request.operation(), Operation::Wipeout);
        server.answer(&request, Status::Success);
    });
    let list = "--servers=SERVER,255.255.255.255:9";
    let shown = run(&address, &["--json", list, "--timeout-ms", "60000", "wipeout"], b"");
    script.end();
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].contains(r#"{\"outcome\":\"success\",\"server\":\"SERVER\"}\n{\"error\":"#), "{shown}");
    assert_eq!(lines[1..], [r#"err: """#, "exit: 3"]);
}

#[test]
fn many_servers_are_not_shut_down_by_accident() {
    let server = Server::open();
    let list = "--servers=SERVER,SERVER";
    expect![[r#"
        out: ""
        err: "violet-client: the list has 2 servers; name the one to shut down with --servers HOST:PORT, or say --all\n"
        exit: 2
    "#]]
    .assert_eq(&run(&server.address().to_string(), &[list, "shutdown"], b""));
    check(
        &["shutdown"],
        b"",
        |server| {
            let request = server.receive();
            assert_eq!(request.operation(), Operation::Shutdown);
            server.answer(&request, Status::Success);
        },
        expect![[r#"
            out: "SERVER shut down\n"
            err: ""
            exit: 0
        "#]],
    );
}

#[test]
fn siblings_are_lines_and_a_context() {
    let reads = |server: Server| {
        let request = server.receive();
        assert_eq!(request.operation(), Operation::GetSiblings { key: Key::parse(b"key").unwrap() });
        let field = b"\x02\0\x01\xff\x03\x08\0\x07\0\0\0two word\x03\0\xff\xff\xff\xffa\nb\0\0\0\0\0\0";
        server.answer_value(&request, field, 0);
    };
    check(
        &["siblings", "key"],
        b"",
        reads,
        expect![[r#"
            out: "value 7 two word\nvalue-hex -1 610a62\nvalue 0 \ncontext 01ff\n"
            err: ""
            exit: 0
        "#]],
    );
    check(
        &["--json", "siblings", "key"],
        b"",
        reads,
        expect![[r#"
            out: "{\"context\":\"01ff\",\"key\":\"key\",\"outcome\":\"success\",\"values\":[{\"value\":\"two word\",\"version\":7},{\"value\":\"a\\nb\",\"version\":-1},{\"value\":\"\",\"version\":0}]}\n"
            err: ""
            exit: 0
        "#]],
    );
}

#[test]
fn a_value_goes_with_a_context() {
    let stores_with = |context: &'static [u8]| {
        move |server: Server| {
            let request = server.receive();
            let (key, context) = (Key::parse(b"key").unwrap(), Context::parse(context).unwrap());
            let value = Value { bytes: b"value", version: 3 };
            assert_eq!(request.operation(), Operation::PutWithContext { key, context, value });
            server.answer_value(&request, b"\x02\0\x02\xfe\0", 0);
        }
    };
    let put = ["put", "key", "value", "--version", "3", "--context"];
    check(
        &[&put[..], &["01Ff"]].concat(),
        b"",
        stores_with(b"\x01\xff"),
        expect![[r#"
            out: "context 02fe\n"
            err: ""
            exit: 0
        "#]],
    );
    check(
        &[&put[..], &["", "--json"]].concat(),
        b"",
        stores_with(b""),
        expect![[r#"
            out: "{\"context\":\"02fe\",\"key\":\"key\",\"outcome\":\"success\"}\n"
            err: ""
            exit: 0
        "#]],
    );
}

#[test]
fn a_server_that_left_is_0_and_one_that_stays_is_3() {
    let leaves = |server: &Server| {
        let request = server.receive();
        assert_eq!(request.operation(), Operation::Leave);
        server.answer(&request, Status::Success);
    };
    check(
        &["leave"],
        b"",
        move |server| {
            leaves(&server);
            server.answer(&server.receive(), Status::Success);
            // Three attempts in vain; the socket stays open, so that nobody else gets its port.
            (0..3).for_each(|_| assert_eq!(server.receive().operation(), Operation::IsAlive));
        },
        expect![[r#"
            out: "SERVER left\n"
            err: ""
            exit: 0
        "#]],
    );
    check(
        &["leave"],
        b"",
        answers(Status::UnknownCommand),
        expect![[r#"
            out: ""
            err: "violet-client: SERVER answered: unknown command\n"
            exit: 4
        "#]],
    );
    let server = Server::open();
    let address = server.address().to_string();
    // It answers for as long as anybody asks; an empty datagram ends it.
    let script = Script::play(move || {
        leaves(&server);
        loop {
            let request = server.receive();
            if request.bytes.is_empty() {
                break;
            }
            server.answer(&request, Status::Success);
        }
    });
    let arguments = ["--servers", "SERVER", "--timeout-ms", "60000", "leave", "--wait-seconds", "1"];
    let shown = run(&address, &arguments, b"");
    UdpSocket::bind(("127.0.0.1", 0)).unwrap().send_to(b"", &address).unwrap();
    script.end();
    expect![[r#"
        out: ""
        err: "violet-client: SERVER still answers after 1 s\n"
        exit: 3
    "#]]
    .assert_eq(&shown);
}

#[test]
fn mistakes_are_2_and_one_clear_line() {
    let long_key = "k".repeat(33);
    let mistakes: &[&[&str]] = &[
        &["get", "key"],
        &["--servers", "no-such-file", "get", "key"],
        &["--servers", "127.0.0.1:0", "get", "key"],
        &["--servers", "127.0.0.1:9", "get", &long_key],
        &["--servers", "127.0.0.1:9", "get", "--key-hex", "6b6"],
        &["--servers", "127.0.0.1:9", "put", "key", "--file", "no-such-file"],
        &["--servers", "127.0.0.1:9", "put", "key", "value", "--context", "0g"],
        &["--servers", "127.0.0.1:9,127.0.0.1:10", "leave"],
        &["--servers", "127.0.0.1:9", "--format", "raw", "put", "key", "value", "--version", "1"],
    ];
    let shown: String = mistakes.iter().map(|arguments| run("SERVER", arguments, b"")).collect();
    expect![[r#"
        out: ""
        err: "violet-client: no servers; give --servers FILE or HOST:PORT[,...], or set VIOLET_SERVERS\n"
        exit: 2
        out: ""
        err: "violet-client: \"no-such-file\" is neither an existing file nor HOST:PORT\n"
        exit: 2
        out: ""
        err: "violet-client: server \"127.0.0.1:0\": port \"0\" is not a number from 1 to 65535\n"
        exit: 2
        out: ""
        err: "violet-client: the key has 33 bytes; 1 to 32 are allowed\n"
        exit: 2
        out: ""
        err: "violet-client: \"6b6\" is no key in hex\n"
        exit: 2
        out: ""
        err: "violet-client: cannot read no-such-file: No such file or directory (os error 2)\n"
        exit: 2
        out: ""
        err: "violet-client: \"0g\" is no context in hex\n"
        exit: 2
        out: ""
        err: "violet-client: the list has 2 servers; name the one that is to leave with --servers HOST:PORT\n"
        exit: 2
        out: ""
        err: "violet-client: the raw format has no versions; leave --version out\n"
        exit: 2
    "#]]
    .assert_eq(&shown);
}

#[test]
fn the_list_may_come_from_the_environment() {
    let server = Server::open();
    let address = server.address().to_string();
    let script = Script::play(move || server.answer(&server.receive(), Status::Success));
    let output = Command::new(env!("CARGO_BIN_EXE_violet-client"))
        .args(["remove", "key", "--timeout-ms", "60000"])
        .env("VIOLET_SERVERS", address)
        .output()
        .unwrap();
    script.end();
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn who_answers_for_a_key_is_printed() {
    let tells = |server: Server| {
        let request = server.receive();
        assert_eq!(request.operation(), Operation::Locate { key: Key::parse(b"key").unwrap() });
        server.answer_value(&request, b"127.0.0.1:1 replica\n127.0.0.1:2 stand-in\n", 0);
    };
    check(
        &["where", "key"],
        b"",
        tells,
        expect![[r#"
            out: "127.0.0.1:1 replica\n127.0.0.1:2 stand-in\n"
            err: ""
            exit: 0
        "#]],
    );
    check(
        &["--json", "where", "key"],
        b"",
        tells,
        expect![[r#"
            out: "{\"holders\":[\"127.0.0.1:1 replica\",\"127.0.0.1:2 stand-in\"],\"key\":\"key\",\"outcome\":\"success\",\"server\":\"SERVER\"}\n"
            err: ""
            exit: 0
        "#]],
    );
}
