//! Who is there, where, and how they are named.

use std::collections::BTreeSet;
use std::fmt;

/// An end of links: a node or a client, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(pub u32);

impl Endpoint {
    const CLIENT: u32 = 1 << 31;

    /// The client `c1`, `c2` …: at the other end of the range of numbers, so that there is always one more node.
    #[must_use]
    pub fn client(number: u32) -> Self {
        Self(Self::CLIENT | number)
    }

    /// Whether it is a client.
    #[must_use]
    pub fn is_client(self) -> bool {
        Self::CLIENT <= self.0
    }

    fn parse(word: &str) -> Option<Self> {
        let number = |digits: &str| {
            let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|number| is_plain && *number < Self::CLIENT)
        };
        match (word.strip_prefix('n'), word.strip_prefix('c')) {
            (Some(digits), _) => number(digits).map(Self),
            (None, Some(digits)) => number(digits).map(Self::client),
            (None, None) => None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_client() { write!(f, "c{}", self.0 - Self::CLIENT) } else { write!(f, "n{}", self.0) }
    }
}

/// Some ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ends {
    /// These.
    Only(BTreeSet<Endpoint>),
    /// All others, also those that nobody has named yet.
    Except(BTreeSet<Endpoint>),
}

impl Ends {
    /// Everybody.
    #[must_use]
    pub fn all() -> Self {
        Self::Except(BTreeSet::new())
    }

    /// One.
    #[must_use]
    pub fn one(end: Endpoint) -> Self {
        Self::Only(BTreeSet::from([end]))
    }

    /// Whether this end is among them.
    #[must_use]
    pub fn contains(&self, end: Endpoint) -> bool {
        match self {
            Self::Only(ends) => ends.contains(&end),
            Self::Except(ends) => !ends.contains(&end),
        }
    }

    /// Everybody else.
    #[must_use]
    pub fn others(&self) -> Self {
        match self {
            Self::Only(ends) => Self::Except(ends.clone()),
            Self::Except(ends) => Self::Only(ends.clone()),
        }
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            |ends: &BTreeSet<Endpoint>| ends.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",");
        match self {
            Self::Only(ends) => write!(f, "{}", names(ends)),
            Self::Except(ends) if ends.is_empty() => write!(f, "*"),
            Self::Except(ends) => write!(f, "!{}", names(ends)),
        }
    }
}

/// One end and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Who.
    pub end: Endpoint,
    /// The id of its site, and the area of that; empty when the network has no places.
    pub site: String,
    /// The area of the site, such as `eu`.
    pub area: String,
}

/// Everybody who is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// In the order in which they were named.
    pub entries: Vec<Entry>,
}

impl Roster {
    /// Nodes `n1` to `n<count>` without places.
    #[must_use]
    pub fn of_nodes(count: u32) -> Self {
        let entry = |number| Entry { end: Endpoint(number), site: String::new(), area: String::new() };
        Self { entries: (1..=count).map(entry).collect() }
    }

    /// The nodes, without the clients.
    pub fn nodes(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| !entry.end.is_client())
    }

    /// The entry of an end.
    #[must_use]
    pub fn entry(&self, end: Endpoint) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.end == end)
    }

    /// Who is meant by `n1`, `c1`, `n1-n5`, a site, `@area` or `*`, or by several of them with commas or blanks
    /// between; `!` before the first of them means all others. What is printed for [`Ends`] reads back as the same.
    ///
    /// # Errors
    /// The word that means nobody, and what would mean somebody.
    pub fn resolve(&self, text: &str) -> Result<Ends, String> {
        if let Some(rest) = text.trim().strip_prefix('!') {
            return Ok(self.resolve(rest)?.others());
        }
        let mut ends = BTreeSet::new();
        let words = text.split([',', ' ']).filter(|word| !word.is_empty());
        for word in words {
            if word == "*" {
                return Ok(Ends::all());
            }
            ends.extend(self.meant_by(word)?);
        }
        if ends.is_empty() {
            return Err(format!("who? Allowed: {}", self.allowed()));
        }
        Ok(Ends::Only(ends))
    }

    /// Those of the roster who are among these ends.
    #[must_use]
    pub fn members(&self, ends: &Ends) -> Vec<Endpoint> {
        self.entries.iter().map(|entry| entry.end).filter(|end| ends.contains(*end)).collect()
    }

    fn meant_by(&self, word: &str) -> Result<Vec<Endpoint>, String> {
        let of = |is_meant: &dyn Fn(&Entry) -> bool| -> Vec<Endpoint> {
            self.entries.iter().filter(|entry| is_meant(entry)).map(|entry| entry.end).collect()
        };
        let ends = if let Some(area) = word.strip_prefix('@') {
            of(&|entry| !area.is_empty() && entry.area == area)
        } else if let Some(end) = Endpoint::parse(word) {
            of(&|entry| entry.end == end)
        } else if let Some((Some(first), Some(last))) =
            word.split_once('-').map(|(first, last)| (Endpoint::parse(first), Endpoint::parse(last)))
        {
            let missing = [first, last].into_iter().find(|end| self.entry(*end).is_none());
            if let Some(end) = missing {
                return Err(format!("'{word}': there is no {end}; allowed: {}", self.allowed()));
            }
            of(&|entry| first <= entry.end && entry.end <= last)
        } else {
            of(&|entry| entry.site == word)
        };
        if ends.is_empty() {
            return Err(format!("'{word}' is nobody; allowed: {}", self.allowed()));
        }
        Ok(ends)
    }

    fn allowed(&self) -> String {
        let mut allowed = vec!["*".to_owned()];
        let nodes: Vec<Endpoint> = self.nodes().map(|entry| entry.end).collect();
        match (nodes.first(), nodes.last()) {
            (Some(first), Some(last)) if first != last => {
                allowed.push(format!("{first} to {last}, {first}-{last}"))
            }
            (Some(only), _) => allowed.push(only.to_string()),
            (None, _) => {}
        }
        let clients = self.entries.iter().filter(|entry| entry.end.is_client());
        allowed.extend(clients.map(|entry| entry.end.to_string()));
        let areas: BTreeSet<&str> = self.entries.iter().map(|entry| entry.area.as_str()).collect();
        allowed.extend(areas.iter().filter(|area| !area.is_empty()).map(|area| format!("@{area}")));
        let sites: BTreeSet<&str> = self.entries.iter().map(|entry| entry.site.as_str()).collect();
        allowed.extend(sites.iter().filter(|site| !site.is_empty()).map(|site| (*site).to_owned()));
        allowed.join(", ")
    }
}
