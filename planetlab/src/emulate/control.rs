//! Live control of a run: a Unix socket that takes and gives one JSON object a line.
//!
//! `{"command": "isolate n3"}` is answered with `{"ok": true, …}` or `{"ok": false, "error": "…"}`. What a command
//! may be is written in `violet-link` for what changes the network; `stats` and `pcap NODE FILE` are the emulator's own. The
//! socket is a path, so it is reached from any network namespace by whoever may write to it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// Longest line that is read.
const LINE_BYTES_MAX: u64 = 8_192;
/// Connections at once; more are closed.
const CONNECTIONS_MAX: usize = 32;
/// How long a client waits for an answer; the router looks for orders every tick.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Does one command and says what came of it.
pub type Doer = dyn Fn(&str) -> Result<Value, String> + Send + Sync;

/// Starts to answer on a socket at `path`. The thread ends with the process.
pub fn listen(path: &Path, doer: Arc<Doer>) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    let open = Arc::new(AtomicUsize::new(0));
    let accept = move || {
        for connection in listener.incoming().flatten() {
            if CONNECTIONS_MAX <= open.load(Ordering::Relaxed) {
                continue;
            }
            open.fetch_add(1, Ordering::Relaxed);
            let (open, doer) = (Arc::clone(&open), Arc::clone(&doer));
            let serve = move || {
                let _gone = answer_all(&connection, &*doer);
                open.fetch_sub(1, Ordering::Relaxed);
            };
            let _refused = thread::Builder::new().name("control".into()).spawn(serve);
        }
    };
    thread::Builder::new().name("control".into()).spawn(accept)?;
    Ok(())
}

fn answer_all(connection: &UnixStream, doer: &Doer) -> io::Result<()> {
    let mut lines = BufReader::new(connection);
    loop {
        let mut line = String::new();
        if (&mut lines).take(LINE_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = answer(&line, doer);
        (&*connection).write_all(format!("{answer}\n").as_bytes())?;
        if !line.ends_with('\n') {
            return Ok(());
        }
    }
}

fn answer(line: &str, doer: &Doer) -> Value {
    let parsed: Result<Value, _> = serde_json::from_str(line);
    let command = parsed.ok().and_then(|value| value.get("command")?.as_str().map(str::to_owned));
    let Some(command) = command else {
        return json!({"ok": false, "error": "not understood; a line must be like {\"command\": \"stats\"}"});
    };
    match doer(command.trim()) {
        Ok(mut value) => {
            if let Some(fields) = value.as_object_mut() {
                fields.insert("ok".into(), true.into());
                return value;
            }
            json!({"ok": true, "answer": value})
        }
        Err(error) => json!({"ok": false, "error": error}),
    }
}

/// Sends one command to the run behind a socket and returns its answer.
pub fn ask(path: &Path, command: &str) -> Result<Value, String> {
    let place = path.display();
    let connection = UnixStream::connect(path).map_err(|error| {
        format!("{place}: {error}; it must be the control socket of a running `emulate` (see --dir)")
    })?;
    let exchange = || -> io::Result<String> {
        connection.set_read_timeout(Some(ANSWER_WITHIN))?;
        (&connection).write_all(format!("{}\n", json!({"command": command})).as_bytes())?;
        let mut line = String::new();
        BufReader::new(&connection).read_line(&mut line)?;
        Ok(line)
    };
    let line = exchange().map_err(|error| format!("{place}: {error}"))?;
    let answer: Value = serde_json::from_str(&line).map_err(|error| format!("{place}: {error}"))?;
    match answer.get("ok") {
        Some(Value::Bool(true)) => Ok(answer),
        _ => Err(answer.get("error").and_then(Value::as_str).unwrap_or("no reason given").to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> (tempfile::TempDir, std::path::PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("control");
        let doer = |command: &str| match command {
            "stats" => Ok(json!({"packets": 7})),
            "heal" => Ok(Value::Null),
            other => Err(format!("`{other}` is not known")),
        };
        listen(&path, Arc::new(doer)).expect("bound");
        (directory, path)
    }

    #[test]
    fn a_command_is_answered_and_an_error_comes_back_in_words() {
        let (_directory, path) = socket();
        assert_eq!(ask(&path, "stats"), Ok(json!({"ok": true, "packets": 7})));
        assert_eq!(ask(&path, " heal "), Ok(json!({"ok": true, "answer": null})));
        assert_eq!(ask(&path, "explode"), Err("`explode` is not known".into()));
    }

    #[test]
    fn many_lines_on_one_connection_are_answered_in_turn_even_garbled_ones() {
        let (_directory, path) = socket();
        let mut connection = UnixStream::connect(&path).expect("listens");
        connection.write_all(b"{\"command\":\"heal\"}\nnonsense\n{\"command\":\"stats\"}\n").expect("sent");
        let lines: Vec<String> =
            BufReader::new(connection).lines().take(3).map(|line| line.expect("a line")).collect();
        assert!(
            lines[0].contains("true") && lines[1].contains("not understood") && lines[2].contains('7'),
            "{lines:?}"
        );
    }

    #[test]
    fn a_socket_that_is_not_there_is_named() {
        let error = ask(Path::new("/nonexistent/control"), "stats").expect_err("nobody listens");
        assert!(error.starts_with("/nonexistent/control"), "{error}");
    }
}
