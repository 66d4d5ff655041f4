//! Probes on disk: one JSON file each in `DIR/probes/`, named by the moment of its start.

use std::fs;
use std::path::{Path, PathBuf};

use super::record::{LAYOUT, Probe};
use crate::when;

/// Probes that are read back at most, the latest ones: two weeks of one an hour.
const PROBES_READ_MAX: usize = 336;

/// Writes a probe; where it stands.
///
/// # Errors
/// The file that could not be written.
pub fn save(directory: &Path, probe: &Probe) -> Result<PathBuf, String> {
    let folder = directory.join("probes");
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let file = folder.join(format!("{}.json", when::in_name(probe.started_unix_seconds)));
    // Under another name first: a reader never finds half a file.
    let half = file.with_extension("half");
    let text = serde_json::to_string(probe).expect("a probe has only text, numbers and lists");
    fs::write(&half, text)
        .and_then(|()| fs::rename(&half, &file))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    Ok(file)
}

/// All kept probes, the oldest first.
///
/// # Errors
/// The file that cannot be read.
pub fn load_all(directory: &Path) -> Result<Vec<Probe>, String> {
    let folder = directory.join("probes");
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
    let files = entries.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|extension| extension == "json")).collect();
    files.sort();
    let skipped = files.len().saturating_sub(PROBES_READ_MAX);
    files.iter().skip(skipped).map(|file| load(file)).collect()
}

fn load(file: &Path) -> Result<Probe, String> {
    let text =
        fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let probe: Probe =
        serde_json::from_str(&text).map_err(|error| format!("{} is no probe: {error}", file.display()))?;
    match probe.layout == LAYOUT {
        true => Ok(probe),
        false => Err(format!("{} has layout {}, this program reads {LAYOUT}", file.display(), probe.layout)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::probe;
    use super::*;

    #[test]
    fn probes_come_back_in_the_order_of_time() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(load_all(directory.path()), Ok(Vec::new()));
        let mut kept = Vec::new();
        for seconds in [2_000_000_000, 1_000_000_000] {
            let mut probe = probe(&[&[0.0, 1.0], &[1.0, 0.0]]);
            probe.started_unix_seconds = seconds;
            save(directory.path(), &probe).unwrap();
            kept.insert(0, probe);
        }
        assert_eq!(load_all(directory.path()), Ok(kept));
        let bad = directory.path().join("probes/19990101-000000.json");
        fs::write(&bad, "{}").unwrap();
        assert!(load_all(directory.path()).unwrap_err().contains("19990101-000000.json is no probe"));
    }
}
