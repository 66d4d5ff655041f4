//! How long values are: fixed, uniform, log-normal, or as listed in a file.

use std::fmt;
use std::fs;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use violet_client::wire::VALUE_BYTES_MAX;

use super::as_text;
use crate::values::Sizes;

/// Most sizes of a file that are kept.
const LISTED_MAX: usize = 4 << 20;

/// Lengths of values as they are asked for: `100`, `1-1000`, `lognormal:MEDIAN:SIGMA`, `file:PATH` (one length a line).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ValueBytes {
    /// All alike.
    Fixed(usize),
    /// From the first to the second, all as likely.
    Uniform(usize, usize),
    /// The logarithm is normal with this deviation; cut off at the longest value of the protocol.
    LogNormal {
        /// Half of the values are shorter.
        median: f64,
        /// Deviation of the natural logarithm.
        sigma: f64,
    },
    /// Drawn from the lengths in a file.
    File(String),
}

impl Default for ValueBytes {
    fn default() -> Self {
        Self::Fixed(100)
    }
}

impl ValueBytes {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// One sentence that names the file and the line.
    pub fn load(&self) -> Result<Sizes, String> {
        Ok(match self {
            Self::Fixed(bytes) => Sizes::Fixed(*bytes),
            Self::Uniform(from, to) => Sizes::Between(*from, *to),
            Self::LogNormal { median, sigma } => {
                Sizes::LogNormal { median: *median, sigma: *sigma, bytes_max: VALUE_BYTES_MAX }
            }
            Self::File(path) => {
                let text =
                    fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?;
                Sizes::Listed(Vec::leak(parse_list(path, &text)?))
            }
        })
    }
}

fn parse_list(path: &str, text: &str) -> Result<Vec<u16>, String> {
    let parse = |(index, line): (usize, &str)| {
        let bytes = line.trim().parse::<u16>().ok().filter(|&bytes| is_length(usize::from(bytes)));
        bytes
            .ok_or_else(|| format!("{path} line {}: {line:?} is not 1 to {VALUE_BYTES_MAX} bytes", index + 1))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let sizes = lines.take(LISTED_MAX).map(parse).collect::<Result<Vec<_>, _>>()?;
    if sizes.is_empty() { Err(format!("{path} holds no lengths")) } else { Ok(sizes) }
}

fn is_length(bytes: usize) -> bool {
    (1..=VALUE_BYTES_MAX).contains(&bytes)
}

impl FromStr for ValueBytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} are no value lengths: 100, 1-1000 (up to {VALUE_BYTES_MAX}), lognormal:300:1.0 (median, \
                 deviation up to 5), file:PATH"
            )
        };
        let length =
            |text: &str| text.parse::<usize>().ok().filter(|&bytes| is_length(bytes)).ok_or_else(wrong);
        if let Some(path) = text.strip_prefix("file:") {
            return Ok(Self::File(path.to_owned()));
        }
        if let Some(numbers) = text.strip_prefix("lognormal:") {
            let (median, sigma) = numbers.split_once(':').ok_or_else(wrong)?;
            let (median, sigma) = (median.parse().map_err(|_| wrong())?, sigma.parse().map_err(|_| wrong())?);
            let fits = (1.0..=VALUE_BYTES_MAX as f64).contains(&median) && (0.0..=5.0).contains(&sigma);
            return if fits { Ok(Self::LogNormal { median, sigma }) } else { Err(wrong()) };
        }
        match text.split_once('-') {
            None => Ok(Self::Fixed(length(text)?)),
            Some((from, to)) => {
                let (from, to) = (length(from)?, length(to)?);
                if from <= to { Ok(Self::Uniform(from, to)) } else { Err(wrong()) }
            }
        }
    }
}

impl fmt::Display for ValueBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(bytes) => write!(f, "{bytes}"),
            Self::Uniform(from, to) => write!(f, "{from}-{to}"),
            Self::LogNormal { median, sigma } => write!(f, "lognormal:{median}:{sigma}"),
            Self::File(path) => write!(f, "file:{path}"),
        }
    }
}

as_text!(ValueBytes);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_and_bad_ones_named() {
        for text in ["100", "1-1000", "lognormal:300:1.5", "file:/tmp/x"] {
            assert_eq!(text.parse::<ValueBytes>().unwrap().to_string(), text);
        }
        for text in ["", "0", "15001", "5-4", "0-4", "lognormal:300", "lognormal:0:1", "lognormal:9:6", "x"] {
            assert!(text.parse::<ValueBytes>().unwrap_err().contains("lognormal:300:1.0"), "{text}");
        }
        assert_eq!(parse_list("f", "1\n\n 15000 \n").unwrap(), [1, 15_000]);
        assert!(parse_list("f", "1\nx\n").unwrap_err().contains("f line 2: \"x\""));
        assert!(parse_list("f", "\n").unwrap_err().contains("no lengths"));
        let missing = ValueBytes::File("/nowhere/sizes".to_owned()).load().unwrap_err();
        assert!(missing.contains("/nowhere/sizes"), "{missing}");
    }
}
