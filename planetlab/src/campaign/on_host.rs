//! A run on one host: started so that it outlives the connection, watched, ended by its own record, brought home.
//!
//! On the host everything of a run is in `DIR/runs/ID`: the plan, the test client's output and result, its process, and
//! in the end its exit status. A process is only ever ended when the start time in its record is still that of the
//! process with that number, and then with its whole session, which holds nothing else.

use std::time::{Duration, Instant};

use crate::inventory::Host;
use crate::remote::{Fleet, HostError, SHORT_DEADLINE, quoted};

/// One question waits this long on the host for the end.
const WATCH_SECONDS: u64 = 20;
/// What bringing a result home may take: a few megabytes over a slow line.
const FETCH_MAX: Duration = Duration::from_secs(300);
/// How often a host that cannot be reached meanwhile is asked again before it is given up.
const LOST_MAX: u32 = 6;

/// What is to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Name of the run.
    pub id: String,
    /// A shipped plan's name, or nothing if `plan_text` is one.
    pub plan_name: Option<String>,
    /// The plan's text, if it is a file here.
    pub plan_text: Vec<u8>,
    /// The nodes, as the test client takes them.
    pub servers: String,
    /// Further words for the test client.
    pub words: Vec<String>,
    /// The test client on the host.
    pub program: String,
    /// How long it may take.
    pub limit: Duration,
}

/// What a host has of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// Exit status; nothing while it runs.
    pub status: Option<i32>,
    /// The result, if one was written.
    pub result: Vec<u8>,
    /// What the test client printed, its end.
    pub out: Vec<u8>,
}

/// The script that starts a run; the plan's text is its standard input.
fn start_script(host: &Host, order: &Order) -> String {
    let id = quoted(&order.id);
    let plan = order.plan_name.as_deref().map_or(format!("runs/{}/plan.toml", order.id), str::to_owned);
    let words = ["run", &plan, "--servers", &order.servers, "--json"].map(str::to_owned);
    let words =
        words.into_iter().chain([format!("runs/{}/result.json", order.id)]).chain(order.words.clone());
    let words: Vec<String> = words.map(|word| quoted(&word)).collect();
    let program =
        if order.program.starts_with('/') { order.program.clone() } else { format!("./{}", order.program) };
    let inner = format!(
        "echo \"$$ $(sed 's/.*) //' /proc/$$/stat | cut -d' ' -f20)\" >runs/{id}/process; {} {}; echo $? >runs/{id}/half; \
         mv runs/{id}/half runs/{id}/status",
        quoted(&program),
        words.join(" ")
    );
    format!(
        "cd {dir} || exit 1\n[ -x {program} ] || {{ echo {missing} >&2; exit 127; }}\n\
         mkdir -p runs || exit 1\nmkdir runs/{id} || exit 1\ncat >runs/{id}/plan.toml || exit 1\n\
         setsid sh -c {inner} >runs/{id}/out 2>&1 </dev/null &\n",
        dir = quoted(&host.dir),
        program = quoted(&program),
        missing = quoted(&format!("{} is not there: 'violet-testbed deploy' brings it", order.program)),
        inner = quoted(&inner),
    )
}

/// Whether the process `$pid` is still the one that started at `$start`. A dead one that nobody has collected is not:
/// there are machines whose first process collects nothing.
const IS_THERE: &str = "[ \"$(sed 's/.*) //' /proc/$pid/stat 2>/dev/null | cut -d' ' -f20)\" = \"$start\" ] && \
     [ \"$(sed 's/.*) //' /proc/$pid/stat 2>/dev/null | cut -d' ' -f1)\" != Z ]";

/// Waits on the host for the end of a run.
fn watch_script(host: &Host, id: &str) -> String {
    format!(
        "cd {}/runs/{} || exit 1\nn=0\nwhile [ $n -lt {WATCH_SECONDS} ] && [ ! -f status ]; do sleep 1; n=$((n+1)); done\n\
         [ -f status ] && exit 0\nread -r pid start <process || exit 0\n\
         {IS_THERE} && {{ echo running; exit 0; }}\n\
         sleep 1\n[ -f status ] || echo gone",
        quoted(&host.dir),
        quoted(id)
    )
}

/// Ends the session of a run, if its process is still the one of the record.
fn end_script(host: &Host, id: &str) -> String {
    format!(
        "cd {}/runs/{} || exit 1\nread -r pid start <process || exit 0\n\
         {IS_THERE} && kill -TERM -$pid\nexit 0",
        quoted(&host.dir),
        quoted(id)
    )
}

/// Prints status, length of the output's end, that end, and the result.
fn fetch_script(host: &Host, id: &str) -> String {
    format!(
        "cd {}/runs/{} || exit 1\n[ -f status ] && cat status || echo running\n\
         tail -c 65536 out >out.end 2>/dev/null || : >out.end\nwc -c <out.end\ncat out.end\n\
         [ -f status ] && [ -f result.json ] && cat result.json\nexit 0",
        quoted(&host.dir),
        quoted(id)
    )
}

/// Starts a run.
///
/// # Errors
/// What is the matter with the host.
pub fn start(fleet: &Fleet, host: &Host, order: &Order) -> Result<(), HostError> {
    fleet.run(host, &start_script(host, order), &order.plan_text, SHORT_DEADLINE).map(|_| ())
}

/// How waiting for a run ended. Nothing runs there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It ended of itself.
    Ended,
    /// Its process is gone without a status.
    Gone,
    /// Its time was over, and it was told to end.
    Overdue,
}

/// Waits for the end of a run, and ends it when its time is over. A connection that breaks meanwhile does no harm.
///
/// # Errors
/// The host was lost, so that nobody knows whether the run goes on.
pub fn wait(fleet: &Fleet, host: &Host, order: &Order) -> Result<Waited, HostError> {
    let end = Instant::now() + order.limit;
    let deadline = Duration::from_secs(WATCH_SECONDS) + SHORT_DEADLINE;
    let mut lost = 0;
    loop {
        match fleet.run(host, &watch_script(host, &order.id), &[], deadline) {
            Ok(output) if output.text() == "gone" => return Ok(Waited::Gone),
            Ok(output) if output.text().is_empty() => return Ok(Waited::Ended),
            Ok(_) => lost = 0,
            Err(error) => {
                lost += 1;
                if LOST_MAX <= lost {
                    return Err(error);
                }
            }
        }
        if end <= Instant::now() {
            fleet.run(host, &end_script(host, &order.id), &[], SHORT_DEADLINE)?;
            return Ok(Waited::Overdue);
        }
    }
}

/// Brings home what the host has of a run.
///
/// # Errors
/// What is the matter with the host.
pub fn fetch(fleet: &Fleet, host: &Host, id: &str) -> Result<Brought, HostError> {
    let output = fleet.run(host, &fetch_script(host, id), &[], FETCH_MAX)?;
    parse(&output.stdout).ok_or_else(|| HostError::Here(format!("what it has of run {id} cannot be read")))
}

fn parse(bytes: &[u8]) -> Option<Brought> {
    let mut lines = bytes.splitn(3, |byte| *byte == b'\n');
    let line = |bytes: &[u8]| Some(std::str::from_utf8(bytes).ok()?.trim().to_owned());
    let (status, length, rest) = (line(lines.next()?)?, line(lines.next()?)?, lines.next()?);
    let status = match status.as_str() {
        "running" => None,
        status => Some(status.parse().ok()?),
    };
    let (out, result) = rest.split_at_checked(length.parse().ok()?)?;
    Some(Brought { status, result: result.to_vec(), out: out.to_vec() })
}

/// Runs that a host has, by name.
///
/// # Errors
/// What is the matter with the host.
pub fn list(fleet: &Fleet, host: &Host) -> Result<Vec<String>, HostError> {
    let script = format!("cd {} && [ -d runs ] && ls -1 runs\nexit 0", quoted(&host.dir));
    let output = fleet.run(host, &script, &[], SHORT_DEADLINE)?;
    Ok(output.text().lines().map(str::to_owned).filter(|id| is_id(id)).collect())
}

/// Whether a text can be a run's name. A host could name anything, and this becomes a path here.
pub fn is_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=100).contains(&text.len()) && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn sh(script: &str, input: &[u8]) -> (i32, Vec<u8>) {
        let command =
            Command::new("sh").arg("-c").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = command.unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code().unwrap(), output.stdout)
    }

    fn host(directory: &std::path::Path, program: &str) -> Host {
        let mut host = Host::new("here", "127.0.0.1");
        host.dir = directory.display().to_string();
        std::fs::create_dir_all(directory.join("current")).unwrap();
        let file = directory.join("current/violet-testclient");
        std::fs::write(&file, format!("#!/bin/sh\n{program}\n")).unwrap();
        assert_eq!(sh(&format!("chmod +x {}", quoted(file.to_str().unwrap())), b"").0, 0);
        host
    }

    fn order() -> Order {
        Order {
            id: "1-it's".replace('\'', "_"),
            plan_name: None,
            plan_text: b"name = 'x'\n".to_vec(),
            servers: "127.0.0.1:1,127.0.0.2:1".to_owned(),
            words: vec!["--set".to_owned(), "a='b c'".to_owned()],
            program: "current/violet-testclient".to_owned(),
            limit: Duration::from_secs(5),
        }
    }

    #[test]
    fn a_run_starts_ends_and_comes_home_with_what_it_printed() {
        let directory = tempfile::tempdir().unwrap();
        // Words come one a line, so that quoting shows; the result goes where --json says.
        let host = host(directory.path(), "printf '%s\\n' \"$@\"; cat \"$2\"; echo '{}' >\"$6\"; exit 1");
        let order = order();
        assert_eq!(sh(&start_script(&host, &order), &order.plan_text).0, 0);
        assert_eq!(sh(&watch_script(&host, &order.id), b""), (0, Vec::new()));
        let brought = parse(&sh(&fetch_script(&host, &order.id), b"").1).unwrap();
        let expected = "run\nruns/1-it_s/plan.toml\n--servers\n127.0.0.1:1,127.0.0.2:1\n--json\n\
             runs/1-it_s/result.json\n--set\na='b c'\nname = 'x'\n";
        assert_eq!(String::from_utf8(brought.out).unwrap(), expected);
        assert_eq!((brought.status, brought.result), (Some(1), b"{}\n".to_vec()));
        // A second run on top of a first.
        assert_eq!(sh(&format!("exec 2>&1; {}", start_script(&host, &order)), &order.plan_text).0, 1);
    }

    #[test]
    fn a_run_that_takes_too_long_is_ended_by_its_record() {
        let directory = tempfile::tempdir().unwrap();
        let host = host(directory.path(), "exec sleep 600");
        let order = order();
        assert_eq!(sh(&start_script(&host, &order), &order.plan_text).0, 0);
        let process = directory.path().join("runs/1-it_s/process");
        let record = loop {
            let record = std::fs::read_to_string(&process).unwrap_or_default();
            if record.ends_with('\n') {
                break record;
            }
        };
        // A record of another process with the same number: nothing is ended.
        let pid = record.split(' ').next().unwrap();
        let is_there = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
        };
        std::fs::write(&process, format!("{pid} 1\n")).unwrap();
        assert_eq!(sh(&end_script(&host, &order.id), b"").0, 0);
        assert!(is_there());
        let gone = sh(&watch_script(&host, &order.id).replace("-lt 20", "-lt 0"), b"");
        assert_eq!(gone, (0, b"gone\n".to_vec()));
        std::fs::write(&process, &record).unwrap();
        let running = sh(&watch_script(&host, &order.id).replace("-lt 20", "-lt 0"), b"");
        assert_eq!(running, (0, b"running\n".to_vec()));
        let brought = parse(&sh(&fetch_script(&host, &order.id), b"").1).unwrap();
        assert_eq!(brought, Brought::default());
        assert_eq!(sh(&end_script(&host, &order.id), b"").0, 0);
        while is_there() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_host_cannot_name_a_path() {
        assert!(is_id("20261201-034500-smoke"));
        for text in ["", "..", "a/b", "a b", "a\u{301}", &"x".repeat(101)] {
            assert!(!is_id(text), "{text}");
        }
    }

    #[test]
    fn what_is_cut_off_is_not_taken_for_a_result() {
        assert_eq!(parse(b"0\n5\nabc"), None);
        assert_eq!(parse(b"x\n0\n"), None);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"0\n2\nab{}").unwrap().result, b"{}");
    }
}
