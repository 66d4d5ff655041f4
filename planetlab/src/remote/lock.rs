//! One at a time on a host: a lock file in its directory, with who holds it, since when and for what.
//!
//! The lock is taken and released by the script that needs it, so that it costs no round trip. Its holder is a process
//! of the host, named with its start time: a lock whose process is gone, as after a crash of the host, is taken over.
//! One whose process lives is respected unless forced.

use super::quoted;
use crate::inventory::Host;

/// Functions and the taking of the lock; `D`, `OWNER`, `PURPOSE` and `FORCE` are set before.
const TAKE: &str = r#"
is_full() {
  free=$(df -Pk "$D" 2>/dev/null | { read -r _; read -r _ _ _ free _; echo "$free"; })
  [ -n "$free" ] && [ "$free" -lt 8 ]
}
give_up() {
  if is_full; then echo "$D: No space left on device" >&2; else echo "$1" >&2; fi
  exit 1
}
start_of() {
  [ -r "/proc/$1/stat" ] || return 0
  read -r stat < "/proc/$1/stat" || return 0
  set -- ${stat##*) }
  shift 19
  echo "$1"
}
mkdir -p "$D" || give_up "$D: cannot be made"
mine="$D/.lock.$$"
echo "$$ $(start_of $$) $OWNER since $(date -u '+%Y-%m-%d %H:%M:%SZ') ($PURPOSE)" 2>/dev/null > "$mine" || {
  rm -f "$mine"
  give_up "$D: cannot be written"
}
if ! ln "$mine" "$D/lock" 2>/dev/null; then
  pid= start= holder=
  [ ! -r "$D/lock" ] || read -r pid start holder < "$D/lock"
  if [ "$FORCE" = 0 ] && [ -n "$pid" ] && [ "$(start_of "$pid")" = "$start" ]; then
    rm -f "$mine"
    echo "$holder" >&2
    exit 75
  fi
  cp "$mine" "$mine.new" && mv -f "$mine.new" "$D/lock" || { rm -f "$mine" "$mine.new"; give_up "$D: cannot be locked"; }
fi
rm -f "$mine"
unlock() {
  read -r pid _ < "$D/lock" && [ "$pid" = "$$" ] && rm -f "$D/lock"
}
trap 'unlock 2>/dev/null' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
"#;

/// A script that runs `body` while it holds the host's lock. In it, `$D` is the host's directory, and `give_up TEXT`
/// ends it with that text, or with "no space" where the disk is full.
#[must_use]
pub fn locked(host: &Host, purpose: &str, is_forced: bool, body: &str) -> String {
    let head = format!(
        "D={}\nOWNER={}\nPURPOSE={}\nFORCE={}\n",
        quoted(&host.dir),
        quoted(&owner()),
        quoted(purpose),
        u8::from(is_forced)
    );
    format!("{head}{TAKE}{body}\n")
}

/// Who works here: `user@machine`.
#[must_use]
pub fn owner() -> String {
    // Not from the user database: a static program cannot look into it on every system.
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    let uid = nix::unistd::getuid();
    let user = user.unwrap_or_else(|_| if uid.is_root() { "root".into() } else { format!("user-{uid}") });
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "somewhere".into());
    let owner = format!("{user}@{}", machine.trim());
    owner.chars().filter(|c| !c.is_control() && !c.is_whitespace()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Runs a locked script in a directory; returns its status and what it said.
    fn check(dir: &std::path::Path, is_forced: bool, body: &str) -> (Option<i32>, String) {
        let mut host = Host::new("a", "h");
        host.dir = dir.display().to_string();
        let output =
            Command::new("sh").arg("-c").arg(locked(&host, "test", is_forced, body)).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    }

    #[test]
    fn a_second_one_is_told_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("d");
        // The second asks while the first holds it, and a third takes it by force.
        let mut host = Host::new("a", "h");
        host.dir = dir.display().to_string();
        let second = quoted(&locked(&host, "second", false, "echo second"));
        let third = quoted(&locked(&host, "third", true, "echo third"));
        let (status, said) = check(&dir, false, &format!("sh -c {second}; echo $?; sh -c {third}; exit 4"));
        assert_eq!(status, Some(4));
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[..2], ["75", "third"]);
        assert!(lines[2].starts_with(&format!("{} since ", owner())), "{said}");
        assert!(lines[2].ends_with("Z (test)"), "{said}");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    }

    #[test]
    fn a_lock_whose_process_is_gone_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("lock"), format!("{} 1 me since then (test)\n", std::process::id()))
            .unwrap();
        assert_eq!(
            check(dir.path(), false, "echo mine; cat \"$D/lock\" >/dev/null"),
            (Some(0), "mine\n".into())
        );
        assert!(!dir.path().join("lock").exists());
        // So is an empty one, which a full disk may have left.
        std::fs::write(dir.path().join("lock"), "").unwrap();
        assert_eq!(check(dir.path(), false, "echo mine"), (Some(0), "mine\n".into()));
    }
}
