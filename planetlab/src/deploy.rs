//! `violet-testbed deploy`: brings the programs to the hosts.
//!
//! A release is a directory `releases/<hash>` in the host's directory, named by the hash of what is in it, so a host
//! that has it needs nothing but one round trip. A host that has not gets one compressed tar stream over its master
//! connection: it is unpacked beside the releases, renamed when it is whole, and the link `current` is switched to it.
//! The release before stays for a way back; older ones go. Whatever goes wrong on the way leaves no half release.
//!
//! The programs should be static, so that they run whatever libraries a host has: `--build` builds them so.

use crate::Failure;
use crate::inventory::{Host, Inventory, args, at_once};
use crate::remote::{Fleet, HostError, SHORT_DEADLINE, locked, quoted, tell_failures};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What is deployed. The first and the last are needed; the test client is, to run plans on the hosts.
const PROGRAMS: [&str; 3] = ["violet", "violet-testclient", "violet-testbed"];
/// Programs without which nothing can be started.
const PROGRAMS_NEEDED: [&str; 2] = ["violet", "violet-testbed"];
/// Hash digits that name a release.
const HASH_DIGITS: usize = 16;
/// How long an upload may take: a few MB at some 30 kB/s.
const UPLOAD_DEADLINE: Duration = Duration::from_secs(180);

/// Describes the sub-command.
#[must_use]
pub fn command() -> Command {
    Command::new("deploy")
        .about("Brings the programs to all hosts that do not have them yet")
        .args(args())
        .arg(
            Arg::new("binaries")
                .long("binaries")
                .value_name("directory")
                .help(format!("Where the programs are [default: {}]", built_dir().display()))
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            Arg::new("build")
                .long("build")
                .help("Build static programs first, in the source's directory, by cargo.")
                .conflicts_with("binaries")
                .action(ArgAction::SetTrue),
        )
        .arg(force())
}

/// The flag that takes a host's lock over.
#[must_use]
pub fn force() -> Arg {
    Arg::new("force")
        .long("force")
        .help("Take over hosts that somebody else has locked.")
        .action(ArgAction::SetTrue)
}

/// Runs the sub-command.
///
/// # Errors
/// One line, when there is nothing to deploy or the inventory is wrong. Hosts that fail are named, and the status is 1.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let inventory = Inventory::from_matches(matches)?;
    if matches.get_flag("build") {
        build()?;
    }
    let directory = matches.get_one::<PathBuf>("binaries").cloned().unwrap_or_else(built_dir);
    let release = Release::of(&directory)?;
    let fleet = Fleet::new()?;
    let begun = Instant::now();
    let is_forced = matches.get_flag("force");
    let results =
        fleet.on_all(&inventory.all(), at_once(matches), |host| deploy(&fleet, host, &release, is_forced));
    let count = |wanted| results.iter().filter(|(_, result)| result.as_ref().ok() == Some(&wanted)).count();
    let packed = release.packed.get().and_then(|packed| packed.as_ref().ok());
    let packed =
        packed.map(|packed| format!(", {:.1} MB packed", mega(packed.len() as u64))).unwrap_or_default();
    println!(
        "release {} ({:.1} MB{packed}): uploaded to {}, switched on {}, unchanged on {}, failed on {} of {} hosts; {:.1} s",
        release.hash,
        mega(release.bytes),
        count(Done::Uploaded),
        count(Done::Switched),
        count(Done::Unchanged),
        results.iter().filter(|(_, result)| result.is_err()).count(),
        results.len(),
        begun.elapsed().as_secs_f64(),
    );
    Ok(ExitCode::from(u8::from(!tell_failures(&results))))
}

/// Bytes in megabytes.
fn mega(bytes: u64) -> f64 {
    // Sizes of programs are exact in a double.
    #[allow(clippy::cast_precision_loss)]
    let bytes = bytes as f64;
    bytes / 1e6
}

/// What was done on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Uploaded,
    Switched,
    Unchanged,
}

/// Programs, named, and packed when the first host needs them.
struct Release {
    hash: String,
    /// `uname -m` of the hosts on which they run.
    machine: &'static str,
    bytes: u64,
    stage: tempfile::TempDir,
    programs: Vec<&'static str>,
    packed: OnceLock<Result<Vec<u8>, String>>,
}

impl Release {
    /// Packs the programs of a directory.
    fn of(directory: &Path) -> Result<Self, Failure> {
        let stage = tempfile::tempdir().map_err(|error| format!("temporary directory: {error}"))?;
        let mut programs = Vec::new();
        let (mut hasher, mut bytes, mut machine) = (blake3::Hasher::new(), 0, "");
        for name in PROGRAMS {
            let program = directory.join(name);
            if !program.is_file() {
                if PROGRAMS_NEEDED.contains(&name) {
                    return Err(format!(
                        "{}: there is no such program; --build builds it",
                        program.display()
                    )
                    .into());
                }
                continue;
            }
            let staged = stage.path().join(name);
            strip(&program, &staged)?;
            let contents =
                std::fs::read(&staged).map_err(|error| format!("{}: {error}", program.display()))?;
            let elf = Elf::read(&contents).ok_or_else(|| {
                format!("{}: is no 64-bit Linux program; --build builds one", program.display())
            })?;
            if !elf.is_static {
                eprintln!(
                    "{}: not static: it runs only where the same libraries are; --build builds a static one",
                    program.display()
                );
            }
            machine = elf.machine;
            hasher.update(name.as_bytes()).update(&(contents.len() as u64).to_le_bytes()).update(&contents);
            bytes += contents.len() as u64;
            programs.push(name);
        }
        let hash = hasher.finalize().to_hex()[..HASH_DIGITS].to_owned();
        Ok(Self { hash, machine, bytes, stage, programs, packed: OnceLock::new() })
    }

    /// The compressed tar stream. It takes a good part of a second to make, so it is not made for hosts that have it.
    fn packed(&self) -> Result<&[u8], HostError> {
        let packed = self.packed.get_or_init(|| pack(self.stage.path(), &self.programs));
        packed.as_deref().map_err(|error| HostError::Here(error.clone()))
    }
}

/// A program without symbols, which are most of its size. Where there is no `strip` it goes as it is.
fn strip(program: &Path, to: &Path) -> Result<(), Failure> {
    let stripped = std::process::Command::new("strip").arg("-o").arg(to).arg(program).output();
    if stripped.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    std::fs::copy(program, to).map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(())
}

fn pack(directory: &Path, programs: &[&str]) -> Result<Vec<u8>, String> {
    let output = std::process::Command::new("tar")
        .arg("-C")
        .arg(directory)
        .arg("-czf")
        .arg("-")
        .args(programs)
        .output();
    let output = output.map_err(|error| format!("tar: {error}"))?;
    if !output.status.success() {
        return Err(format!("tar: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(output.stdout)
}

/// The little that has to be known about a program before it is sent around the world.
struct Elf {
    machine: &'static str,
    is_static: bool,
}

impl Elf {
    fn read(bytes: &[u8]) -> Option<Self> {
        const PT_INTERP: u32 = 3;
        let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        if bytes.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let machine = match u16_at(18)? {
            62 => "x86_64",
            183 => "aarch64",
            243 => "riscv64",
            _ => return None,
        };
        let headers = usize::try_from(u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?)).ok()?;
        let (size, count) = (usize::from(u16_at(54)?), usize::from(u16_at(56)?));
        let kind = |index: usize| {
            let at = headers.checked_add(index * size)?;
            Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
        };
        let is_static = (0..count).all(|index| kind(index).is_some_and(|kind| kind != PT_INTERP));
        Some(Self { machine, is_static })
    }
}

/// The triple for which `--build` builds: the GNU one, because it is there wherever Rust is.
fn triple() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

fn built_dir() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    target.join(triple()).join("release")
}

fn build() -> Result<(), Failure> {
    let mut cargo = std::process::Command::new("cargo");
    cargo.args([
        "build",
        "--release",
        "--locked",
        "--target",
        &triple(),
        "--config",
        "profile.release.strip=true",
    ]);
    cargo.args(PROGRAMS.iter().flat_map(|name| ["--bin", *name]));
    cargo.args(["-p", "violet", "-p", "violet-testclient", "-p", "violet-testbed"]);
    cargo.env("RUSTFLAGS", "-C force-frame-pointers=yes -C target-feature=+crt-static");
    let status = cargo.status().map_err(|error| format!("--build: cargo: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err("--build: cargo failed; run it in the source's directory".into())
    }
}

fn deploy(fleet: &Fleet, host: &Host, release: &Release, is_forced: bool) -> Result<Done, HostError> {
    let found = fleet.run(host, &look_script(host, release), &[], SHORT_DEADLINE)?.text();
    let (state, system) = found.split_once('\n').unwrap_or((&found, ""));
    if system != format!("Linux {}", release.machine) {
        return Err(HostError::Here(format!(
            "it is {system}, and the programs are for Linux {}",
            release.machine
        )));
    }
    match state {
        "current" => Ok(Done::Unchanged),
        "there" => {
            let script = locked(host, "deploy", is_forced, &switch_script(release));
            fleet.run(host, &script, &[], SHORT_DEADLINE).map(|_| Done::Switched)
        }
        _ => {
            let body = format!("{}{}", unpack_script(release), switch_script(release));
            let script = locked(host, "deploy", is_forced, &body);
            fleet.run(host, &script, release.packed()?, UPLOAD_DEADLINE).map(|_| Done::Uploaded)
        }
    }
}

/// Says whether the release is there, and what kind of machine it is.
fn look_script(host: &Host, release: &Release) -> String {
    format!(
        "D={}\nH={}\n{}",
        quoted(&host.dir),
        release.hash,
        r#"if [ ! -d "$D/releases/$H" ]; then echo absent
elif [ "$(readlink "$D/current")" = "releases/$H" ]; then echo current
else echo there
fi
uname -sm
"#
    )
}

/// Unpacks the stream on standard input. It gets its name when it is whole, so a half one is never taken for a release.
fn unpack_script(release: &Release) -> String {
    format!(
        "H={}\n{}",
        release.hash,
        r#"new="$D/releases/.new-$H-$$"
trap 'rm -rf "$new"; unlock 2>/dev/null' EXIT
rm -rf "$D/releases/.new-"*
mkdir -p "$new" || give_up "$D/releases: cannot be made"
if said=$(tar -xzof - -C "$new" 2>&1); then :; else
  case $said in *'No space left'*) ;; *) ! is_full || said="$said: No space left on device" ;; esac
  echo "$said" >&2
  exit 1
fi
mv "$new" "$D/releases/$H" || give_up "$D/releases/$H: cannot be made"
"#
    )
}

/// Makes the release the current one and keeps the one that was; `mv -T` replaces the link in one step.
fn switch_script(release: &Release) -> String {
    format!(
        "H={}\n{}",
        release.hash,
        r#"before=$(readlink "$D/current")
ln -sfn "releases/$H" "$D/.current.$$" && mv -fT "$D/.current.$$" "$D/current" || give_up "$D/current: cannot be switched"
for old in "$D/releases/"*; do
  case releases/${old##*/} in "releases/$H" | "$before") ;; *) rm -rf "$old" ;; esac
done
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_named_by_its_contents() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for name in PROGRAMS_NEEDED {
            std::fs::write(one.path().join(name), &program).unwrap();
            std::fs::write(two.path().join(name), &program).unwrap();
        }
        let hash = |directory: &Path| Release::of(directory).unwrap().hash;
        let before = hash(one.path());
        assert_eq!(before, hash(two.path()));
        assert_eq!(before.len(), HASH_DIGITS);
        // One more program is another release.
        std::fs::write(two.path().join("violet-testclient"), &program).unwrap();
        assert_ne!(before, hash(two.path()));
        std::fs::write(one.path().join("violet"), "#!/bin/sh\n").unwrap();
        let error = Release::of(one.path()).err().unwrap().to_string();
        assert!(error.ends_with("violet: is no 64-bit Linux program; --build builds one"), "{error}");
        std::fs::remove_file(one.path().join("violet")).unwrap();
        let error = Release::of(one.path()).err().unwrap().to_string();
        assert!(error.ends_with("violet: there is no such program; --build builds it"), "{error}");
    }
}
