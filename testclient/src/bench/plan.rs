//! What is measured: the cells of a run, in groups that can be chosen.
//!
//! A *cell* is one server under one load. Cells of one value size form a block, since they share
//! started and filled servers; in every round all cells of a block are measured once, one after the other, in
//! an order that turns with the round. So whatever disturbs the machine disturbs the servers alike, and ratios
//! are taken within a round. Deliberately not here: how a cell is run and what is made of the figures.

use serde::Serialize;

use super::codec::Dialect;
use super::processors::Pinning;
use super::subjects::Subject;
use crate::sockets::Packing;

/// Keys in every server.
pub const KEYS: u32 = 100_000;
/// Sockets, or connections, of the generator.
pub const SOCKETS: usize = 4;
/// The value sizes.
pub const VALUE_SIZES: [usize; 4] = [8, 100, 1_000, 10_000];
/// The value size for everything that is measured at one size only.
pub const MAIN_VALUE_BYTES: usize = 100;
/// What is offered in the overload, as a multiple of what saturates.
pub const OVERLOAD_FACTOR: f64 = 4.0;

/// Cells that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// A closed loop whose bursts are packed, half GETs.
    Saturation,
    /// The same with a window that fits the default receive buffer of a server that asks for no other.
    SmallWindow,
    /// The same with 95 % GETs.
    MostlyGet,
    /// The same as the first, with a generator that sends every request as a message of its own.
    PlainClient,
    /// Open loads at shares of what saturates.
    OpenLoop,
    /// One request at a time.
    Unloaded,
    /// An open load of four times what saturates.
    Overload,
    /// One worker against four, all processors free.
    Workers,
}

impl Group {
    /// All of them, in the order of a round.
    pub const ALL: [Self; 8] = [
        Self::Saturation,
        Self::SmallWindow,
        Self::MostlyGet,
        Self::PlainClient,
        Self::OpenLoop,
        Self::Unloaded,
        Self::Overload,
        Self::Workers,
    ];

    /// As it is chosen.
    pub fn name(self) -> &'static str {
        match self {
            Self::Saturation => "saturation",
            Self::SmallWindow => "small-window",
            Self::MostlyGet => "mostly-get",
            Self::PlainClient => "plain-client",
            Self::OpenLoop => "open-loop",
            Self::Unloaded => "unloaded",
            Self::Overload => "overload",
            Self::Workers => "workers",
        }
    }

    /// What it is, in a line.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Saturation => "closed loop, bursts packed (UDP_SEGMENT), 50 % GET",
            Self::SmallWindow => "the same with a window that no default receive buffer loses, up to 100 B",
            Self::MostlyGet => "closed loop with such a window, bursts packed, 95 % GET",
            Self::PlainClient => "the same, 50 % GET, every request a message of its own, 100 B",
            Self::OpenLoop => "open loop at 50, 80 and 95 % of each server's saturated rate, 50 % GET",
            Self::Unloaded => "one request at a time, everything on one processor, 100 B",
            Self::Overload => "open loop at four times the saturated rate, answers within 250 ms, 100 B",
            Self::Workers => "closed loop, Violet with 1 and 4 workers, all processors free, 100 B",
        }
    }

    /// Whether its rates are shares of what saturates.
    fn needs_rate(self) -> bool {
        matches!(self, Self::OpenLoop | Self::Overload)
    }
}

/// How a cell is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Shape {
    /// As many requests under way as the window says.
    Closed {
        /// The window.
        window: usize,
    },
    /// A fixed rate.
    Open {
        /// Of the saturated rate.
        share: f64,
    },
    /// One request at a time.
    Ping,
}

/// A way to speak to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The server.
    pub subject: Subject,
    /// The dialect; `None` for Redis, which is not on UDP.
    pub dialect: Option<Dialect>,
}

impl Target {
    /// The echo server.
    pub const ECHO: Self = Self { subject: Subject::Echo, dialect: Some(Dialect::Echo) };
    /// Violet without packed replies, raw.
    pub const RAW_SINGLE: Self = Self { subject: Subject::VioletSingle, dialect: Some(Dialect::Raw) };
    /// Violet without packed replies, protobuf.
    pub const PROTOBUF_SINGLE: Self =
        Self { subject: Subject::VioletSingle, dialect: Some(Dialect::Protobuf) };
    /// Violet, raw.
    pub const RAW: Self = Self { subject: Subject::Violet, dialect: Some(Dialect::Raw) };
    /// Violet, protobuf.
    pub const PROTOBUF: Self = Self { subject: Subject::Violet, dialect: Some(Dialect::Protobuf) };
    /// Violet with four workers, raw.
    pub const RAW_FOUR: Self = Self { subject: Subject::VioletFour, dialect: Some(Dialect::Raw) };
    /// memcached.
    pub const MEMCACHED: Self = Self { subject: Subject::Memcached, dialect: Some(Dialect::Memcached) };
    /// Redis.
    pub const REDIS: Self = Self { subject: Subject::Redis, dialect: None };

    /// As it stands in tables.
    pub fn name(self) -> String {
        let layout = match self.dialect {
            Some(Dialect::Raw) => " raw",
            Some(Dialect::Protobuf) => " protobuf",
            Some(Dialect::Echo | Dialect::Memcached) | None => "",
        };
        let settings = match self.subject {
            Subject::VioletSingle => ", replies single",
            Subject::VioletFour => ", 4 workers",
            Subject::Echo | Subject::Violet | Subject::Memcached | Subject::Redis => "",
        };
        let server = match self.subject {
            Subject::Echo => "echo",
            Subject::VioletSingle | Subject::Violet | Subject::VioletFour => "violet",
            Subject::Memcached => "memcached UDP",
            Subject::Redis => "redis TCP",
        };
        format!("{server}{layout}{settings}")
    }
}

/// One server under one load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Where it belongs.
    pub group: Group,
    /// The server.
    pub target: Target,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// GETs of a hundred requests.
    pub get_percent: u32,
    /// The load.
    pub shape: Shape,
    /// How requests leave.
    pub packing: Packing,
    /// Who runs where.
    pub pinning: Pinning,
}

impl Cell {
    /// A name that no other cell has.
    pub fn id(&self) -> String {
        let share = match self.shape {
            Shape::Open { share } => format!("{:.0}%/", share * 100.0),
            Shape::Closed { .. } | Shape::Ping => String::new(),
        };
        format!("{}/{}B/{share}{}", self.group.name(), self.value_bytes, self.target.name())
    }
}

/// The window at a value size. A small one fits the default receive buffer of a server that does not ask for
/// more: 92 datagrams of 1 KB, 12 of 10 KB, and of 100 bytes more than 128 but, out of packed bursts, less
/// than 192 (memcached lost some). Beyond 100 bytes there is no other.
pub fn window(value_bytes: usize, is_small: bool) -> usize {
    match (value_bytes, is_small) {
        (..=100, false) => 256,
        (..=100, true) => 128,
        (..=1_000, _) => 64,
        _ => 8,
    }
}

impl Cell {
    /// Whether it tells what saturates its server.
    pub fn tells_rate(&self) -> bool {
        let needs_small_window = self.target == Target::MEMCACHED;
        self.group == Group::Saturation || (self.group == Group::SmallWindow && needs_small_window)
    }

    /// The same cell with another window, if it has one, and without packed bursts where there are none.
    pub fn adapted(self, window: Option<usize>, may_pack: bool) -> Self {
        let shape = match (self.shape, window) {
            (Shape::Closed { .. }, Some(window)) => Shape::Closed { window },
            (shape, _) => shape,
        };
        let packing = if may_pack { self.packing } else { Packing::Single };
        Self { shape, packing, ..self }
    }
}

/// All cells of one value size, in order.
pub fn block(value_bytes: usize) -> Vec<Cell> {
    Group::ALL.iter().flat_map(|&group| cells(group, value_bytes)).collect()
}

fn cells(group: Group, value_bytes: usize) -> Vec<Cell> {
    let is_main = value_bytes == MAIN_VALUE_BYTES;
    let is_small = matches!(group, Group::SmallWindow | Group::MostlyGet | Group::PlainClient);
    let has_small_window = window(value_bytes, true) < window(value_bytes, false);
    let violet = [Target::ECHO, Target::RAW, Target::PROTOBUF];
    let peers = [Target::ECHO, Target::RAW, Target::PROTOBUF, Target::MEMCACHED];
    let cell = |target: Target| Cell {
        group,
        target,
        value_bytes,
        get_percent: 50,
        shape: Shape::Closed { window: window(value_bytes, is_small) },
        packing: Packing::Segments,
        pinning: Pinning::Apart,
    };
    let all = |targets: &[Target]| targets.iter().map(|&target| cell(target)).collect::<Vec<_>>();
    let with_redis = [&peers[..], &[Target::REDIS]].concat();
    match group {
        Group::Saturation if is_main => {
            let singly = [Target::REDIS, Target::RAW_SINGLE, Target::PROTOBUF_SINGLE];
            all(&[&violet[..], &singly].concat())
        }
        Group::Saturation if has_small_window => all(&[&violet[..], &[Target::REDIS]].concat()),
        Group::Saturation => all(&with_redis),
        Group::SmallWindow if has_small_window => all(&peers),
        Group::SmallWindow => Vec::new(),
        Group::MostlyGet => {
            all(&with_redis).into_iter().map(|cell| Cell { get_percent: 95, ..cell }).collect()
        }
        Group::OpenLoop => {
            let at = |share| peers.map(|target| Cell { shape: Shape::Open { share }, ..cell(target) });
            [0.5, 0.8, 0.95].into_iter().flat_map(at).collect()
        }
        _ if !is_main => Vec::new(),
        Group::PlainClient => {
            let targets = [&peers[..], &[Target::RAW_SINGLE]].concat();
            all(&targets).into_iter().map(|cell| Cell { packing: Packing::Single, ..cell }).collect()
        }
        Group::Unloaded => {
            let ping = |cell| Cell { shape: Shape::Ping, pinning: Pinning::Together, ..cell };
            all(&with_redis).into_iter().map(ping).collect()
        }
        Group::Overload => {
            let shape = Shape::Open { share: OVERLOAD_FACTOR };
            all(&peers).into_iter().map(|cell| Cell { shape, ..cell }).collect()
        }
        Group::Workers => {
            let targets = [Target::RAW, Target::RAW_FOUR];
            all(&targets).into_iter().map(|cell| Cell { pinning: Pinning::Free, ..cell }).collect()
        }
    }
}

/// What of all this is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The groups.
    pub groups: Vec<Group>,
    /// The value sizes.
    pub value_sizes: Vec<usize>,
}

impl Choice {
    /// Reads names of groups and value sizes; none chooses all of a kind.
    ///
    /// # Errors
    /// One sentence that names what is unknown and what is known.
    pub fn parse(names: &[String], value_sizes: &[usize]) -> Result<Self, String> {
        let known = |name: &String| {
            let found = Group::ALL.into_iter().find(|group| group.name() == name);
            found.ok_or_else(|| {
                let names: Vec<_> = Group::ALL.iter().map(|group| group.name()).collect();
                format!("\"{name}\" is no group; there are {}", names.join(", "))
            })
        };
        let groups = names.iter().map(known).collect::<Result<Vec<_>, _>>()?;
        if let Some(size) = value_sizes.iter().find(|size| !VALUE_SIZES.contains(size)) {
            return Err(format!("{size} is no measured value size; there are {VALUE_SIZES:?}"));
        }
        Ok(Self {
            groups: if groups.is_empty() { Group::ALL.to_vec() } else { groups },
            value_sizes: if value_sizes.is_empty() { VALUE_SIZES.to_vec() } else { value_sizes.to_vec() },
        })
    }

    /// The chosen cells of a block that the present servers can serve. Open loads bring along the closed
    /// ones that tell their rates.
    pub fn cells(&self, value_bytes: usize, is_present: impl Fn(Subject) -> bool) -> Vec<Cell> {
        let needs_rate = self.groups.iter().any(|group| group.needs_rate());
        let is_chosen = |cell: &Cell| self.groups.contains(&cell.group) || (needs_rate && cell.tells_rate());
        let cells = block(value_bytes).into_iter();
        cells.filter(|cell| is_chosen(cell) && is_present(cell.target.subject)).collect()
    }
}

/// The order of a round's cells: closed loads first in the first round, since open ones need their rates;
/// after that every group starts with another cell each time.
pub fn order(cells: &[Cell], round: usize) -> Vec<Cell> {
    let mut ordered = Vec::with_capacity(cells.len());
    for group in Group::ALL {
        let mut of_group: Vec<Cell> = cells.iter().copied().filter(|cell| cell.group == group).collect();
        if !of_group.is_empty() {
            let turn = round % of_group.len();
            of_group.rotate_left(turn);
        }
        ordered.extend(of_group);
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_an_id_of_its_own() {
        let mut ids: Vec<String> =
            VALUE_SIZES.iter().flat_map(|&bytes| block(bytes)).map(|cell| cell.id()).collect();
        let count = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count);
        assert!(ids.contains(&"open-loop/100B/95%/violet raw".to_owned()), "{ids:?}");
    }

    #[test]
    fn unknown_names_are_refused_with_what_is_known() {
        let check = |names: &[&str], sizes: &[usize], expected: &str| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let error = Choice::parse(&names, sizes).unwrap_err();
            assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
        };
        check(&["saturation", "speed"], &[], "\"speed\" is no group; there are saturation, ");
        check(&[], &[8, 9], "9 is no measured value size");
    }

    #[test]
    fn open_loads_bring_the_closed_ones_they_depend_on() {
        let choice = Choice::parse(&["overload".to_owned()], &[]).unwrap();
        let without = choice.cells(100, |subject| subject != Subject::Memcached);
        assert!(without.iter().all(|cell| cell.target.subject != Subject::Memcached));
        let cells = choice.cells(100, |_| true);
        assert!(without.len() < cells.len());
        for cell in cells.iter().filter(|cell| cell.group == Group::Overload) {
            assert!(cells.iter().any(|other| other.tells_rate() && other.target == cell.target));
        }
        assert!(Choice::parse(&["unloaded".to_owned()], &[]).unwrap().cells(8, |_| true).is_empty());
    }

    #[test]
    fn a_round_has_all_cells_and_turns() {
        let cells = block(100);
        for round in 0..9 {
            let ordered = order(&cells, round);
            assert_eq!(ordered.len(), cells.len());
            assert!(cells.iter().all(|cell| ordered.contains(cell)));
        }
        let first = |round| order(&cells, round)[0].target;
        assert_ne!(first(0), first(1));
        assert_eq!(order(&cells, 0)[0].group, Group::Saturation);
    }
}
