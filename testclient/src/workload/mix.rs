//! Shares of operations, and who is asked.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::as_text;
use crate::values::Random;

/// What is asked of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Write a new value.
    Put,
    /// Read it.
    Get,
    /// Remove it.
    Remove,
}

/// Shares of operations, as whole numbers: `get:95,put:5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mix {
    put: u32,
    get: u32,
    remove: u32,
}

impl Default for Mix {
    fn default() -> Self {
        Self { put: 50, get: 50, remove: 0 }
    }
}

impl Mix {
    /// Whether nothing is written.
    pub fn is_get_only(&self) -> bool {
        self.put == 0 && self.remove == 0
    }

    /// One operation.
    pub fn draw(&self, random: &mut Random) -> Deed {
        let drawn = random.below((self.put + self.get + self.remove) as usize) as u32;
        match drawn {
            drawn if drawn < self.get => Deed::Get,
            drawn if drawn < self.get + self.put => Deed::Put,
            _ => Deed::Remove,
        }
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no mix: shares of put, get and remove, as in get:95,put:5");
        let mut mix = Self { put: 0, get: 0, remove: 0 };
        for part in text.split(',') {
            let (name, share) = part.trim().split_once(':').ok_or_else(wrong)?;
            let share: u32 = share.parse().ok().filter(|share| *share <= 1_000_000).ok_or_else(wrong)?;
            match name {
                "put" => mix.put += share,
                "get" => mix.get += share,
                "remove" => mix.remove += share,
                _ => return Err(wrong()),
            }
        }
        if mix.put + mix.get + mix.remove == 0 { Err(wrong()) } else { Ok(mix) }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "put:{},get:{},remove:{}", self.put, self.get, self.remove)
    }
}

as_text!(Mix);

/// Who is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Route {
    /// The first server of the list.
    First,
    /// A random one each time.
    #[default]
    Random,
    /// One that holds the key, by the table that servers tell (Violet only).
    ZeroHop,
}

impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "first" => Ok(Self::First),
            "random" => Ok(Self::Random),
            "zero-hop" => Ok(Self::ZeroHop),
            _ => Err(format!("{text:?} is no route: first, random or zero-hop")),
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "first",
            Self::Random => "random",
            Self::ZeroHop => "zero-hop",
        })
    }
}

as_text!(Route);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_read_and_drawn_by_their_shares() {
        let mix: Mix = "get:70,put:20, remove:10".parse().unwrap();
        assert_eq!(mix.to_string().parse(), Ok(mix));
        let mut random = Random::new(1);
        let mut seen = [0; 3];
        (0..10_000).for_each(|_| seen[mix.draw(&mut random) as usize] += 1);
        let [put, get, remove] = seen;
        assert!(1_850 < put && put < 2_150 && 6_850 < get && get < 7_150 && 850 < remove && remove < 1_150);
        for text in ["", "get", "get:x", "get:0", "read:5", "get:-1", "get:1000001"] {
            assert!(text.parse::<Mix>().unwrap_err().contains("get:95,put:5"), "{text}");
        }
        assert!("nearest".parse::<Route>().unwrap_err().contains("zero-hop"));
    }
}
