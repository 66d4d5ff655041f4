//! The episodes: pairs of settings whose difference a flame graph shows, one row each.
//!
//! The first three are the original's of 2015, made again as settings; the fourth shows what lay behind
//! its first. The others are steps of this project's own tuning that exist as settings. Both sides of
//! an episode get the same load: the same nodes, requests and offered rate, which the slower side must
//! be able to serve, since graphs of different amounts of work cannot be compared.

/// Settings of nodes, `(name, value)`.
pub type Settings = &'static [(&'static str, &'static str)];

/// Whom the clients ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Always the first node.
    First,
    /// A random node for each request.
    Random,
}

impl Entry {
    /// One word for records.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Random => "random",
        }
    }
}

/// One configuration of an episode.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// Its name on the command line.
    pub config: &'static str,
    /// What it sets, besides what both sides share.
    pub settings: Settings,
}

/// Before and after.
#[derive(Clone, Copy, Debug)]
pub struct Episode {
    /// Its name; folders begin with its number in the table and this.
    pub name: &'static str,
    /// What is changed, in a few words.
    pub title: &'static str,
    /// How it was.
    pub before: Side,
    /// How it is.
    pub after: Side,
    /// Settings of both.
    pub common: Settings,
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Whom the clients ask.
    pub entry: Entry,
    /// Requests a second, offered.
    pub rate: u32,
    /// Sockets of the generator: few make many replies go to one address.
    pub sockets: usize,
    /// What to look for in the graphs.
    pub look_at: &'static str,
    /// What the original of 2015 reported, if this is one of its three: an improvement, each time.
    pub original: Option<&'static str>,
}

/// The shape of the original's node: four workers, and every datagram a job of its own.
const AS_IN_2015: Settings =
    &[("workers", "4"), ("inline-batch", "0"), ("batch-datagrams", "1"), ("job-batches", "64")];
/// The same, and one of three nodes has to pass a request on.
const AS_IN_2015_TWO_COPIES: Settings = &[
    ("workers", "4"),
    ("inline-batch", "0"),
    ("batch-datagrams", "1"),
    ("job-batches", "64"),
    ("replicas", "2"),
];
/// All requests go through the job channel.
const BY_WORKERS: Settings = &[("inline-batch", "0"), ("job-batches", "64")];

/// All episodes; `EPISODE=1` is the first.
pub const EPISODES: &[Episode] = &[
    Episode {
        name: "reply-sockets",
        title: "Replies by a socket per worker instead of the one receive socket",
        before: Side { config: "reply-shared", settings: &[("reply-sockets", "shared")] },
        after: Side { config: "reply-per-worker", settings: &[("reply-sockets", "per-worker")] },
        common: AS_IN_2015,
        nodes: 2,
        entry: Entry::First,
        rate: 5_000,
        sockets: 16,
        look_at: "The send towers of the workers. On Linux, threads that send by one UDP socket hardly meet: \
                  the two graphs should look the same.",
        original: Some("Base: 1,430 requests/s at S16, with a reply socket per worker"),
    },
    Episode {
        name: "replication-sockets",
        title: "Replication by sockets opened at start instead of one per request",
        before: Side {
            config: "replication-per-request",
            settings: &[("replication-sockets", "per-request")],
        },
        after: Side { config: "replication-per-worker", settings: &[("replication-sockets", "per-worker")] },
        common: AS_IN_2015,
        nodes: 2,
        entry: Entry::First,
        rate: 5_000,
        sockets: 16,
        look_at: "SingleUse::open and the closing behind it: socket, setsockopt, bind and close for every frame \
                  between members. After, they are gone.",
        original: Some("Replication: 1,430 to 1,670 requests/s at S16"),
    },
    Episode {
        name: "forwarding-sockets",
        title: "Own sockets for forwarding instead of one for forwarding and replication of all threads",
        before: Side { config: "forwarding-shared-all", settings: &[("forwarding-sockets", "shared-all")] },
        after: Side { config: "forwarding-own", settings: &[("forwarding-sockets", "own")] },
        common: AS_IN_2015_TWO_COPIES,
        nodes: 3,
        entry: Entry::First,
        rate: 4_000,
        sockets: 16,
        look_at: "The send towers again, now of what goes to members. No lock shows up in either graph.",
        original: Some("Forwarding: 1,670 to 3,020 requests/s at S16"),
    },
    Episode {
        name: "reply-lock",
        title: "Replies by a socket per worker instead of one behind a lock",
        before: Side { config: "reply-locked", settings: &[("reply-sockets", "locked")] },
        after: Side { config: "reply-per-worker", settings: &[("reply-sockets", "per-worker")] },
        common: AS_IN_2015,
        nodes: 2,
        entry: Entry::First,
        rate: 5_000,
        sockets: 16,
        look_at: "The lock's slow path and the futex below it: what Go's lock on a descriptor did to the original, \
                  made visible. It grows with the cores, not with the requests.",
        original: None,
    },
    Episode {
        name: "batches",
        title: "Jobs of up to 32 datagrams instead of one each",
        before: Side { config: "batch-1", settings: &[("batch-datagrams", "1")] },
        after: Side { config: "batch-32", settings: &[("batch-datagrams", "32")] },
        common: BY_WORKERS,
        nodes: 1,
        entry: Entry::First,
        rate: 10_000,
        sockets: 16,
        look_at: "The channel and its wake-ups, and the number of receive and send calls: all of them are paid \
                  once a batch instead of once a request.",
        original: None,
    },
    Episode {
        name: "inline-batch",
        title: "The listener works off small batches itself instead of waking a worker",
        before: Side { config: "inline-0", settings: &[("inline-batch", "0")] },
        after: Side { config: "inline-16", settings: &[("inline-batch", "16")] },
        common: &[],
        nodes: 5,
        entry: Entry::Random,
        rate: 6_000,
        sockets: 16,
        look_at: "The workers' towers disappear, and with them the futex calls by which a thread is woken for one \
                  or two datagrams.",
        original: None,
    },
    Episode {
        name: "send-segments",
        title: "Replies to one client leave as one message that the kernel cuts",
        before: Side { config: "segments-off", settings: &[("send-segments", "off")] },
        after: Side { config: "segments-on", settings: &[("send-segments", "on")] },
        common: &[],
        nodes: 1,
        entry: Entry::First,
        rate: 20_000,
        sockets: 1,
        look_at: "Below sendmmsg: one trip through the kernel's layers for many replies, and the cutting \
                  (skb_segment) at its end.",
        original: None,
    },
    Episode {
        name: "fan-out",
        title: "A read asks the best replica under load instead of all of them",
        before: Side { config: "fan-out-all", settings: &[("fan-out", "all")] },
        after: Side { config: "fan-out-adaptive", settings: &[("fan-out", "adaptive")] },
        common: &[],
        nodes: 5,
        entry: Entry::Random,
        rate: 8_000,
        sockets: 16,
        look_at: "Everything that a member does for another's read: receiving, checking the tag, looking the key \
                  up, answering. It happens once instead of three times.",
        original: None,
    },
    Episode {
        name: "workers",
        title: "One worker on two cores instead of four",
        before: Side { config: "workers-4", settings: &[("workers", "4")] },
        after: Side { config: "workers-1", settings: &[("workers", "1")] },
        common: BY_WORKERS,
        nodes: 1,
        entry: Entry::First,
        rate: 10_000,
        sockets: 16,
        look_at: "Four towers become one. What goes is waking and scheduling, not work.",
        original: None,
    },
    Episode {
        name: "reply-mode",
        title: "The member that has the answer sends it instead of handing it back",
        before: Side { config: "reply-proxy", settings: &[("reply-mode", "proxy")] },
        after: Side { config: "reply-direct", settings: &[("reply-mode", "direct")] },
        common: &[],
        nodes: 5,
        entry: Entry::Random,
        rate: 8_000,
        sockets: 16,
        look_at: "One frame less for every request that is answered elsewhere: less sending, receiving, sealing and \
                  opening at the front end.",
        original: None,
    },
    Episode {
        name: "lanes",
        title: "Lanes steered by the kernel, with batched calls, instead of one plain socket",
        before: Side { config: "lanes-shared", settings: &[("lanes", "shared")] },
        after: Side { config: "lanes-steered", settings: &[("lanes", "steered")] },
        common: &[],
        nodes: 5,
        entry: Entry::Random,
        rate: 8_000,
        sockets: 16,
        look_at: "recvfrom and sendto become recvmmsg and sendmmsg; the look at the first bytes of each datagram \
                  moves into the kernel.",
        original: None,
    },
];

/// The episode of a number, counted from 1, or of a name.
///
/// # Errors
/// A sentence that lists what there is.
pub fn find(wanted: &str) -> Result<(usize, &'static Episode), String> {
    let is_it =
        |(index, episode): &(usize, &Episode)| wanted == episode.name || wanted.parse() == Ok(index + 1);
    let found = EPISODES.iter().enumerate().find(is_it).map(|(index, episode)| (index + 1, episode));
    found.ok_or_else(|| {
        let names: Vec<&str> = EPISODES.iter().map(|episode| episode.name).collect();
        format!("there is no episode '{wanted}'; there are 1 to {} and {}", names.len(), names.join(", "))
    })
}

/// The first episode that has a configuration, and that side of it.
///
/// # Errors
/// A sentence that lists what there is.
pub fn find_config(wanted: &str) -> Result<(&'static Episode, Side), String> {
    let sides = || EPISODES.iter().flat_map(|episode| [(episode, episode.before), (episode, episode.after)]);
    sides().find(|(_, side)| side.config == wanted).ok_or_else(|| {
        let mut names: Vec<&str> = sides().map(|(_, side)| side.config).collect();
        names.dedup();
        format!("there is no configuration '{wanted}'; there are {}", names.join(", "))
    })
}

/// The folder of an episode's side.
pub fn folder(number: usize, episode: &Episode, what: &str) -> String {
    format!("{number:02}-{}-{what}", episode.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn episodes_and_configurations_are_found_or_what_there_is_is_said() {
        assert_eq!(find("2").map(|(number, episode)| (number, episode.name)), Ok((2, "replication-sockets")));
        assert_eq!(find("lanes").map(|(number, _)| number), Ok(EPISODES.len()));
        let error = find("12x").expect_err("there is none");
        assert!(error.starts_with("there is no episode '12x'; there are 1 to 11 and reply-sockets, "));
        let (episode, side) = find_config("replication-per-request").expect("it is there");
        assert_eq!((episode.name, side.settings), ("replication-sockets", episode.before.settings));
        assert!(find_config("x").expect_err("there is none").contains("batch-32"));
    }

    #[test]
    fn both_sides_differ_and_names_are_unique() {
        for (index, episode) in EPISODES.iter().enumerate() {
            assert_ne!(episode.before.settings, episode.after.settings);
            assert!(EPISODES[..index].iter().all(|other| other.name != episode.name));
        }
    }
}
