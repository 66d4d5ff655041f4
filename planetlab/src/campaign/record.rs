//! What is kept of a run beside the results themselves: who measured from where, against which nodes, and how it ended.
//!
//! `DIR/runs/ID/run.json` holds a [`Run`]; `DIR/runs/ID/HOST/result.json` and `HOST/out` are what the test client wrote
//! on that host.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Of the layout of the file; a reader refuses others.
pub const LAYOUT: u32 = 1;
/// Runs that are read back at most, the latest ones.
const RUNS_READ_MAX: usize = 500;

/// One run of a plan from one or several hosts in turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`LAYOUT`].
    pub layout: u32,
    /// Its name: the moment of its start and the plan's name.
    pub id: String,
    /// The plan's name.
    pub plan: String,
    /// Start, in seconds from 1970.
    pub started_unix_seconds: u64,
    /// The nodes that were asked.
    pub servers: Vec<Server>,
    /// The hosts that asked.
    pub from: Vec<From>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// Its host's name in the inventory.
    pub name: String,
    /// Its address.
    pub address: SocketAddr,
    /// Where it stands.
    pub site: String,
    /// Part of the world.
    pub region: String,
}

/// A host that made load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct From {
    /// Its name in the inventory.
    pub name: String,
    /// Where it stands.
    pub site: String,
    /// Part of the world.
    pub region: String,
    /// Minutes that its local time was ahead of UTC at the start, if its time zone is known.
    pub local_minutes: Option<i32>,
    /// How it ended.
    pub ending: Ending,
}

/// How a run ended on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Nothing is known yet: it may still run there.
    Open,
    /// The test client ended with this status; its result is here if it wrote one.
    Ended(i32),
    /// It did not come about or was lost, with the reason.
    Failed(String),
}

impl Run {
    /// Where this run is kept below a directory.
    pub fn folder(&self, directory: &Path) -> PathBuf {
        folder(directory, &self.id)
    }

    /// Writes the record.
    ///
    /// # Errors
    /// The file that could not be written.
    pub fn save(&self, directory: &Path) -> Result<(), String> {
        let file = self.folder(directory).join("run.json");
        let text = serde_json::to_string_pretty(self).expect("a record has only text, numbers and lists");
        write(&file, text.as_bytes())
    }

    /// Reads the record of one run.
    ///
    /// # Errors
    /// The file, and what is wrong with it.
    pub fn load(directory: &Path, id: &str) -> Result<Self, String> {
        let file = folder(directory, id).join("run.json");
        let text =
            fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let run: Self =
            serde_json::from_str(&text).map_err(|error| format!("{} is no run: {error}", file.display()))?;
        match run.layout == LAYOUT {
            true => Ok(run),
            false => {
                Err(format!("{} has layout {}, this program reads {LAYOUT}", file.display(), run.layout))
            }
        }
    }

    /// All kept runs, the oldest first.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_all(directory: &Path) -> Result<Vec<Self>, String> {
        let Ok(entries) = fs::read_dir(directory.join("runs")) else { return Ok(Vec::new()) };
        let folders = entries.flatten().filter(|entry| entry.path().join("run.json").is_file());
        let mut ids: Vec<String> =
            folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        ids.sort();
        let skipped = ids.len().saturating_sub(RUNS_READ_MAX);
        ids.iter().skip(skipped).map(|id| Self::load(directory, id)).collect()
    }
}

fn folder(directory: &Path, id: &str) -> PathBuf {
    directory.join("runs").join(id)
}

/// Writes a file and the folders above it; under another name first, so that nobody finds half a file.
///
/// # Errors
/// The file that could not be written.
pub fn write(file: &Path, bytes: &[u8]) -> Result<(), String> {
    let half = file.with_extension("half");
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&half, bytes))
        .and_then(|()| fs::rename(&half, file))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_come_back_in_order_and_foreign_folders_do_not() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Run::load_all(directory.path()), Ok(Vec::new()));
        let run = |id: &str| Run {
            layout: LAYOUT,
            id: id.to_owned(),
            plan: "smoke".to_owned(),
            started_unix_seconds: 1,
            servers: Vec::new(),
            from: Vec::new(),
        };
        for id in ["2-smoke", "1-smoke"] {
            run(id).save(directory.path()).unwrap();
        }
        fs::create_dir(directory.path().join("runs/other")).unwrap();
        assert_eq!(Run::load_all(directory.path()), Ok(vec![run("1-smoke"), run("2-smoke")]));
        fs::write(directory.path().join("runs/2-smoke/run.json"), "{}").unwrap();
        assert!(Run::load_all(directory.path()).unwrap_err().contains("run.json is no run"));
    }
}
