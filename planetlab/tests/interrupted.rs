//! A run that is interrupted while it waits for a host leaves no socket behind.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    if Command::new("ssh").arg("-V").stderr(Stdio::null()).status().is_err() {
        eprintln!("skipped: needs ssh");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // It takes the connection and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let inventory = dir.path().join("inventory.toml");
    std::fs::write(&inventory, format!("[[host]]\nname = \"a\"\nhost = \"127.0.0.1\"\nssh_port = {port}\n"))
        .unwrap();
    let temporary = dir.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut testbed = Command::new(env!("CARGO_BIN_EXE_violet-testbed"))
        .args(["status", "--inventory"])
        .arg(&inventory)
        .env("TMPDIR", &temporary)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    // Connected, so it is in the middle of it.
    let _connection = listener.accept().unwrap();
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 1);
    let interrupted = Command::new("kill").args(["-INT", &testbed.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = testbed.try_wait().unwrap() {
            break status;
        }
        if Duration::from_secs(30) < begun.elapsed() {
            testbed.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(130));
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
}
