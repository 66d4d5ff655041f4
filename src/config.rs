//! Every setting of a node, one entry each: field, type, unit, default, allowed range, sentence.
//!
//! Flags, environment variables, the TOML file and `--help` are all derived from the table below.
//! Layers, later ones win: default, file, environment (`VIOLET_NAME`), flag (`--name`). A value that
//! is not allowed stops the start with its source, the value and the allowed range; nothing is
//! silently clamped.

use crate::ids::Site;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

macro_rules! choices {
    ($( $(#[doc = $doc:literal])+ $name:ident { $( $(#[doc = $variant_doc:literal])+ $variant:ident $text:literal )* } )*) => { $(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $( $(#[doc = $variant_doc])+ $variant, )* }

        impl SettingValue for $name {
            fn parse(text: &str, _: Limits) -> Option<Self> {
                match text { $( $text => Some(Self::$variant), )* _ => None }
            }
            fn allowed(_: Limits) -> String {
                [$( $text ),*].join("|")
            }
        }
    )* };
}

choices! {
    /// When a PUT or REMOVE is acknowledged.
    WriteRule {
        /// All live members of the preference list have applied it.
        AllLive "all-live"
        /// A majority of the replicas has applied it.
        Quorum "quorum"
        /// The coordinator has applied it.
        One "one"
    }
    /// How a GET decides which version it returns.
    ReadRule {
        /// The first replica that has the key answers.
        First "first"
        /// A majority of the replicas is asked for versions first; the newest one's body is sent.
        Quorum "quorum"
    }
    /// How many replicas a GET asks at once.
    FanOut {
        /// All live replicas send the value; the client takes the first.
        All "all"
        /// All are asked while the node is idle, but only the best sends the value; under load only
        /// the best is asked, and a second one when it is late.
        Adaptive "adaptive"
        /// The best one; others only after a miss.
        One "1"
    }
    /// Who sends the reply to the client.
    ReplyMode {
        /// The member that has the answer.
        Direct "direct"
        /// The front end that the client asked.
        Proxy "proxy"
        /// Directly, until a client shows that it cannot take replies from another address.
        Auto "auto"
    }
    /// Which layouts of the course protocol the port takes.
    Protocol {
        /// Both.
        Auto "auto"
        /// Only the fixed layout of 2015 and 2016.
        Raw "raw"
        /// Only the envelope of 2017 to 2025.
        Protobuf "protobuf"
    }
    /// How the kernel spreads one port over sockets.
    Lanes {
        /// Separate sockets for clients, members and gossip, steered in the kernel (Linux).
        Steered "steered"
        /// One socket; the listener sorts. For systems without steering.
        Shared "shared"
    }
    /// Whether something is done.
    Switch {
        /// Yes.
        On "on"
        /// No.
        Off "off"
    }
    /// By which sockets replies leave.
    ReplySockets {
        /// The one that clients' requests come in by, which all threads share.
        Shared "shared"
        /// The same, one thread at a time.
        Locked "locked"
        /// One for every thread that sends.
        PerWorker "per-worker"
    }
    /// By which sockets frames between replicas leave.
    ReplicationSockets {
        /// A new one for every datagram, closed behind it.
        PerRequest "per-request"
        /// One for every thread that sends.
        PerWorker "per-worker"
    }
    /// By which sockets requests are passed on to other members.
    ForwardingSockets {
        /// One of its own for every thread that sends.
        Own "own"
        /// That thread's socket for replication.
        SharedPerWorker "shared-per-worker"
        /// One for forwarding and replication of all threads.
        SharedAll "shared-all"
    }
    /// Time-outs of the failure detector.
    GossipPreset {
        /// One machine or one site: a crash is noticed in 3 to 6 s.
        Lan "lan"
        /// Long links: a crash is noticed in about 40 s.
        Wan "wan"
    }
}

/// What a number may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Smallest allowed number.
    pub min: u64,
    /// Largest allowed number.
    pub max: u64,
}

/// A type that a setting can have.
pub trait SettingValue: Sized {
    /// Reads the text; `None` when it is not allowed.
    fn parse(text: &str, limits: Limits) -> Option<Self>;
    /// What is allowed, for messages and help.
    fn allowed(limits: Limits) -> String;
}

macro_rules! numbers {
    ($( $type:ty )*) => { $(
        impl SettingValue for $type {
            fn parse(text: &str, limits: Limits) -> Option<Self> {
                let number: u64 = text.parse().ok()?;
                let fits = limits.min <= number && number <= limits.max;
                if fits { Self::try_from(number).ok() } else { None }
            }
            fn allowed(limits: Limits) -> String {
                format!("{} to {}", limits.min, limits.max)
            }
        }
    )* };
}
numbers! { u8 u32 u64 usize }

/// A number, or whatever suits the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrAuto {
    /// What suits the machine.
    Auto,
    /// So many.
    Number(usize),
}

impl SettingValue for OrAuto {
    fn parse(text: &str, limits: Limits) -> Option<Self> {
        if text == "auto" { Some(Self::Auto) } else { usize::parse(text, limits).map(Self::Number) }
    }
    fn allowed(limits: Limits) -> String {
        format!("auto, or {}", usize::allowed(limits))
    }
}

impl SettingValue for SocketAddr {
    fn parse(text: &str, _: Limits) -> Option<Self> {
        text.parse().ok()
    }
    fn allowed(_: Limits) -> String {
        "IP:PORT".into()
    }
}

impl SettingValue for Option<SocketAddr> {
    fn parse(text: &str, limits: Limits) -> Option<Self> {
        if text.is_empty() { Some(None) } else { SocketAddr::parse(text, limits).map(Some) }
    }
    fn allowed(_: Limits) -> String {
        "IP:PORT, or empty".into()
    }
}

impl SettingValue for Site {
    fn parse(text: &str, _: Limits) -> Option<Self> {
        Self::parse(text)
    }
    fn allowed(_: Limits) -> String {
        "a name of up to 32 bytes without blanks, or empty".into()
    }
}

impl SettingValue for Option<PathBuf> {
    fn parse(text: &str, _: Limits) -> Option<Self> {
        Some(if text.is_empty() { None } else { Some(PathBuf::from(text)) })
    }
    fn allowed(_: Limits) -> String {
        "a path, or empty".into()
    }
}

/// One row of the table, for help and for loading.
#[derive(Clone, Copy)]
pub struct Setting {
    /// Name of the flag and the key in the file, with dashes.
    pub name: &'static str,
    /// Unit of the value.
    pub unit: &'static str,
    /// Default, as text.
    pub default: &'static str,
    /// One or two sentences.
    pub doc: &'static str,
    allowed: fn() -> String,
    set: fn(&mut Config, &str) -> bool,
}

impl Setting {
    /// What is allowed, as text.
    #[must_use]
    pub fn allowed(&self) -> String {
        (self.allowed)()
    }

    /// The environment variable of this setting.
    #[must_use]
    pub fn env(&self) -> String {
        format!("VIOLET_{}", self.name.replace('-', "_").to_uppercase())
    }
}

const fn range(min: u64, max: u64) -> Limits {
    Limits { min, max }
}
const ANY: Limits = range(0, u64::MAX);

macro_rules! settings {
    ($( $field:ident $name:literal : $type:ty, $unit:literal, $default:literal, $limits:expr, $doc:literal; )*) => {
        /// All settings of a node.
        #[derive(Clone, Debug)]
        pub struct Config { $( #[doc = $doc] pub $field: $type, )* }

        /// The table of settings.
        pub const SETTINGS: &[Setting] = &[ $( Setting {
            name: $name,
            unit: $unit,
            default: $default,
            doc: $doc,
            allowed: || <$type as SettingValue>::allowed($limits),
            set: |config, text| {
                <$type as SettingValue>::parse(text, $limits).map(|value| config.$field = value).is_some()
            },
        }, )* ];

        impl Default for Config {
            fn default() -> Self {
                Self { $( $field: <$type as SettingValue>::parse($default, $limits)
                    .expect("every default is allowed; a test reads them all"), )* }
            }
        }
    };
}

settings! {
    listen "listen": SocketAddr, "address", "127.0.0.1:4410", ANY,
        "UDP address of this node; clients, members and gossip share the port.";
    advertise "advertise": Option<SocketAddr>, "address", "", ANY,
        "Address under which members and clients reach this node, when it differs from listen.";
    servers "servers": Option<PathBuf>, "file", "", ANY,
        "List of all members, one HOST:PORT a line; the first list of members and where to look for others.";
    site "site": Site, "name", "", ANY,
        "What this node fails together with (a data centre, a rack): no two replicas of a key are on one site while there are \
         enough. Empty = the second column of its line in servers, if there is one.";
    cluster_key_file "cluster-key-file": Option<PathBuf>, "file", "", ANY,
        "File whose bytes (16 to 4,096) are the cluster's key. Needed for any address that is not loopback.";
    protocol "protocol": Protocol, "layout", "auto", ANY,
        "Which generations of the course protocol the port takes.";
    replicas "replicas": usize, "members", "3", range(1, 7),
        "Members that hold each key. The same on all members.";
    partitions_log2 "partitions-log2": u8, "log2", "11", range(6, 14),
        "The ring has 2^this partitions (11 balances 3 replicas over up to 100 members). The same on all members.";
    write_rule "write-rule": WriteRule, "rule", "all-live", ANY,
        "When a PUT or REMOVE is acknowledged.";
    read_rule "read-rule": ReadRule, "rule", "first", ANY,
        "How a GET decides which version it returns.";
    fan_out "fan-out": FanOut, "width", "adaptive", ANY,
        "How many replicas a GET asks at once.";
    reply_mode "reply-mode": ReplyMode, "mode", "auto", ANY,
        "Who sends the reply: the member that has the answer, or the front end.";
    memory_mib "memory-mib": u64, "MiB", "160", range(32, 1_048_576),
        "Memory that the process may use, values, caches and queues included. At the limit PUT gets 'out of space'.";
    hint_after_ms "hint-after-ms": u64, "ms", "50", range(1, 60_000),
        "A replica that has not acknowledged a write for this long, beyond the round trip to it, is replaced by the next member, with a hint.";
    suspect_after_ms "suspect-after-ms": u64, "ms", "350", range(20, 60_000),
        "A member that answers nothing for this long, beyond the round trip to it, is bypassed until it is heard again.";
    hedge_after_ms "hedge-after-ms": u64, "ms", "25", range(1, 60_000),
        "A read whose replica has not answered for this long beyond the round trip (or longer, while all replicas are slow) is sent to a second one.";
    fence_after_ms "fence-after-ms": u64, "ms", "300", range(50, 60_000),
        "A gap in this process's time (suspended, starved) longer than this: serve nothing until caught up.";
    stale_after_ms "stale-after-ms": u64, "ms", "2000", range(100, 60_000),
        "Frames between members that were on their way for longer are refused.";
    patience_ms "patience-ms": u64, "ms", "2000", range(50, 60_000),
        "Client requests that waited longer than this for their turn are dropped before any work is done.";
    reply_window_ms "reply-window-ms": u64, "ms", "10000", range(1_000, 600_000),
        "How long a repeated request is recognised. Clients repeat for up to 7.6 s.";
    reply_cache_mib "reply-cache-mib": u64, "MiB", "32", range(1, 65_536),
        "Most memory for recognising repeated requests (part of memory-mib; at most an eighth of it is used).";
    hints_mib "hints-mib": u64, "MiB", "64", range(1, 65_536),
        "Most memory for writes kept for absent replicas (part of memory-mib; at most a quarter of it is used).";
    hint_keep_s "hint-keep-s": u64, "s", "3600", range(10, 604_800),
        "Hints and removal marks older than this are dropped.";
    pending_max "pending-max": usize, "operations", "16384", range(16, 1_048_576),
        "Operations in progress at one node; more are shed. An eighth of them may wait for the same member.";
    forget_after_ms "forget-after-ms": u64, "ms", "20000", range(1_000, 86_400_000),
        "A member down for this long loses its place: its share of the data is copied anew from the other replicas.";
    gossip "gossip": GossipPreset, "preset", "lan", ANY,
        "Time-outs of the failure detector, at least; long round trips, which are measured, stretch them.";
    lanes "lanes": Lanes, "mode", "steered", ANY,
        "How the kernel spreads the port over sockets.";
    workers "workers": usize, "threads", "0", range(0, 256),
        "Worker threads; 0 = one less than the cores, at least one.";
    batch_datagrams "batch-datagrams": usize, "datagrams", "32", range(1, 256),
        "Most datagrams received in one call and handed over as one job.";
    job_batches "job-batches": usize, "batches", "8", range(2, 4_096),
        "Length of the job channel. When it is half full the listener works, too (unless inline-batch is 0).";
    inline_batch "inline-batch": OrAuto, "datagrams", "auto", range(0, 256),
        "The listener works off batches up to this size itself while the workers are idle. 0 = it never works: clients \
         are shed when the job channel is half full, members when it is full. auto = 16, and every batch when there is \
         only one core to work on.";
    receive_buffer_kib "receive-buffer-kib": usize, "KiB", "4096", range(16, 1_048_576),
        "Receive buffer asked for each socket; what the kernel grants is reported.";
    send_buffer_kib "send-buffer-kib": usize, "KiB", "1024", range(16, 1_048_576),
        "Send buffer asked for each socket.";
    send_segments "send-segments": Switch, "switch", "on", ANY,
        "Small replies to one client leave as one message, which the kernel cuts, and frames to one member as one datagram \
         (Linux, steered lanes).";
    receive_segments "receive-segments": Switch, "switch", "on", ANY,
        "Bursts that clients or members hand over as one message arrive as one, and are cut here (Linux, steered lanes).";
    reply_sockets "reply-sockets": ReplySockets, "sockets", "per-worker", ANY,
        "By which sockets replies leave. For experiments (see flamegraphs); a shared lane has no sockets per worker.";
    replication_sockets "replication-sockets": ReplicationSockets, "sockets", "per-worker", ANY,
        "By which sockets frames between replicas leave. For experiments: per-request costs more than the work itself.";
    forwarding_sockets "forwarding-sockets": ForwardingSockets, "sockets", "own", ANY,
        "By which sockets requests are passed on. For experiments; a shared lane has one socket for everything.";
    admin "admin": Option<SocketAddr>, "address", "", ANY,
        "TCP address of the admin HTTP server (metrics, members, profile); empty = none. Loopback only.";
}

/// Why a configuration cannot be used; one line.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError(pub String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Puts the layers together. `file` is the path and text of the TOML file, `env` looks a variable
    /// up, `flag` a flag.
    ///
    /// # Errors
    /// [`ConfigError`] names the source, the value and what is allowed.
    pub fn load(
        file: Option<(&Path, &str)>,
        env: impl Fn(&str) -> Option<String>,
        flag: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        if let Some((path, text)) = file {
            config.apply_file(path, text)?;
        }
        for setting in SETTINGS {
            if let Some(text) = env(&setting.env()) {
                config.apply(setting, &text, &setting.env())?;
            }
            if let Some(text) = flag(setting.name) {
                config.apply(setting, &text, &format!("--{}", setting.name))?;
            }
        }
        Ok(config)
    }

    fn apply_file(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let message = error.to_string().replace('\n', " ");
            ConfigError(format!("{}: {message}", path.display()))
        })?;
        for (name, value) in &table {
            let source = format!("{}: {name}", path.display());
            let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
                return Err(ConfigError(format!("{source}: there is no such setting")));
            };
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            self.apply(setting, &text, &source)?;
        }
        Ok(())
    }

    fn apply(&mut self, setting: &Setting, text: &str, source: &str) -> Result<(), ConfigError> {
        if (setting.set)(self, text) {
            return Ok(());
        }
        let allowed = setting.allowed();
        Err(ConfigError(format!("{source}: '{text}' is not allowed; allowed: {allowed} ({})", setting.unit)))
    }

    /// The address under which others know this node.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.advertise.unwrap_or(self.listen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, env: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Config, String> {
        let find = |pairs: &[(&str, &str)], name: &str| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        Config::load(Some((Path::new("v.toml"), file)), |name| find(env, name), |name| find(flags, name))
            .map_err(|error| error.0)
    }

    #[test]
    fn layers_override_each_other() {
        let config = check("replicas = 2\nworkers = 5", &[("VIOLET_WORKERS", "6")], &[("workers", "7")]);
        let config = config.expect("all values are allowed");
        assert_eq!((config.replicas, config.workers, config.hint_after_ms), (2, 7, 50));
    }

    #[test]
    fn what_is_not_allowed_is_named_with_its_range() {
        let error = |file, env, flags| check(file, env, flags).expect_err("not allowed");
        assert_eq!(
            error("", &[], &[("replicas", "9")]),
            "--replicas: '9' is not allowed; allowed: 1 to 7 (members)"
        );
        assert_eq!(
            error("", &[("VIOLET_WRITE_RULE", "two")], &[]),
            "VIOLET_WRITE_RULE: 'two' is not allowed; allowed: all-live|quorum|one (rule)"
        );
        assert_eq!(error("replica = 1", &[], &[]), "v.toml: replica: there is no such setting");
        assert!(error("replicas = [", &[], &[]).starts_with("v.toml: TOML parse error"));
        assert!(error("replicas = -1", &[], &[]).contains("'-1' is not allowed"));
    }

    #[test]
    fn names_are_unique_and_documented() {
        let mut names: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SETTINGS.len());
        assert!(SETTINGS.iter().all(|setting| setting.doc.ends_with('.')));
    }
}
