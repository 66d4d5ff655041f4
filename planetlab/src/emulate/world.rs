//! The emulated world: a network namespace with a TUN device for each node and one for the client.
//!
//! The calling process first moves into the client's namespace itself, before it has other threads, so that nothing
//! it or its command does can reach the machine's real network, not even by mistake. A thread then goes from one
//! new namespace to the next and leaves a device and a name in each. The devices stay open in this process, which
//! routes between them. There is no `ip` command, no bridge, no address resolution and no route to the outside.

use std::fs::{self, File};
use std::io;
use std::net::UdpSocket;
use std::path::Path;
use std::thread;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use crate::emulate::made::{self, Made, NAMED, Namespace};
use crate::emulate::packet::{self, Places};
use crate::emulate::system::{self, Device};

/// The device's name in every namespace.
pub const DEVICE: &str = "wan0";
/// Packets that wait for the router in a device. Fewer are lost in a burst, many more would hide seconds of delay.
const QUEUE_PACKETS: u32 = 2_000;

/// Makes what `made` names and returns the devices in the same order, nodes first, then the clients'. `made` must have
/// been written to `directory`; it is written again with what was found. On failure the caller removes by the record.
pub fn build(made: &mut Made, places: Places, directory: &Path, mtu: u32) -> Result<Vec<File>, String> {
    let alone = made::hold_names().map_err(|error| format!("/run: {error}"))?;
    prepare_named_directory(made, directory).map_err(|error| format!("{NAMED}: {error}"))?;
    reserve_names(made)?;
    drop(alone);
    // The first client's is this process's own, and first, so that nothing is ever outside.
    let home = places.nodes;
    let own = enter_new(&made.namespaces[home], places.address(home), mtu)?;
    let others: Vec<_> =
        made.namespaces.iter().cloned().enumerate().filter(|(place, _)| *place != home).collect();
    let built = thread::spawn(move || -> Result<Vec<File>, String> {
        others.iter().map(|(place, namespace)| enter_new(namespace, places.address(*place), mtu)).collect()
    });
    let mut devices = built.join().map_err(|_| "the thread that makes namespaces panicked".to_owned())??;
    devices.insert(home, own);
    for namespace in &mut made.namespaces {
        namespace.inode = namespace.inode_now();
    }
    made.write(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(devices)
}

/// Makes the directory of names a mount that passes changes on, as `ip netns add` does, unless it is one.
fn prepare_named_directory(made: &mut Made, directory: &Path) -> io::Result<()> {
    let share =
        || mount(None::<&str>, NAMED, None::<&str>, MsFlags::MS_SHARED | MsFlags::MS_REC, None::<&str>);
    made.directory_made = !Path::new(NAMED).exists();
    made.directory_mounted = !made::is_mount(NAMED);
    made.write(directory)?;
    fs::create_dir_all(NAMED)?;
    if !made.directory_mounted {
        match share() {
            // Another run that ended meanwhile took its mount away.
            Err(Errno::EINVAL) => made.directory_mounted = true,
            result => return Ok(result?),
        }
        made.write(directory)?;
    }
    mount(Some(NAMED), NAMED, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
    made::mark_mount()?;
    Ok(share()?)
}

/// Takes all names, or none if one is somebody else's; the record then names none, so that nobody's are removed by it.
fn reserve_names(made: &mut Made) -> Result<(), String> {
    for (count, namespace) in made.namespaces.iter().enumerate() {
        if let Err(error) = File::create_new(namespace.path()) {
            let refused = format!("namespace {}: {error}; --run must be another name", namespace.name);
            for ours in &made.namespaces[..count] {
                let _gone_already = fs::remove_file(ours.path());
            }
            made.namespaces.clear();
            return Err(refused);
        }
    }
    Ok(())
}

/// Moves the calling thread into a new namespace, gives it a name and makes its device.
fn enter_new(namespace: &Namespace, address: std::net::Ipv4Addr, mtu: u32) -> Result<File, String> {
    let enter = || -> io::Result<File> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        mount(
            Some("/proc/thread-self/ns/net"),
            &namespace.path(),
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )?;
        for (setting, value) in SETTINGS {
            set(setting, value)?;
        }
        system::switch_loopback_on()?;
        let netmask = packet::NETMASK;
        let device = Device { name: &namespace.device, address, netmask, mtu, queue_packets: QUEUE_PACKETS };
        system::open_tun(&device)
    };
    enter().map_err(|error| format!("namespace {}: {error}", namespace.name))
}

/// Settings of each namespace: every device would send router solicitations, and the kernel would throw fragments away
/// that arrive among those of many other datagrams.
const SETTINGS: [(&str, &str); 3] = [
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv4/ipfrag_max_dist", "0"),
];

fn set(setting: &str, value: &str) -> io::Result<()> {
    match fs::write(format!("/proc/sys/net/{setting}"), value) {
        // A kernel without IPv6 has none of its settings.
        Err(error) if error.kind() == io::ErrorKind::NotFound && setting.starts_with("ipv6/") => Ok(()),
        result => result,
    }
}

/// Packets that devices dropped because the router did not fetch them in time, summed over namespaces that are there.
pub fn device_drops(namespaces: &[Namespace]) -> u64 {
    let paths: Vec<_> = namespaces.iter().map(Namespace::path).collect();
    let visit = move || -> u64 {
        paths
            .iter()
            .filter_map(|path| {
                setns(File::open(path).ok()?, CloneFlags::CLONE_NEWNET).ok()?;
                drops_in(&fs::read_to_string("/proc/thread-self/net/dev").ok()?)
            })
            .sum()
    };
    thread::spawn(visit).join().unwrap_or(0)
}

/// The dropped outgoing packets of the device in a table of `/proc/net/dev`: the twelfth figure.
fn drops_in(table: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(DEVICE)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().nth(11)?.parse().ok()
}

/// Opens a UDP socket within another namespace, by a thread that goes there and ends.
pub fn socket_in(namespace: &Namespace, address: std::net::SocketAddrV4) -> io::Result<UdpSocket> {
    let file = File::open(namespace.path())?;
    let opened = thread::spawn(move || -> io::Result<UdpSocket> {
        setns(&file, CloneFlags::CLONE_NEWNET)?;
        UdpSocket::bind(address)
    });
    opened.join().map_err(|_| io::Error::other("the thread that opens a socket panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_packets_are_read_from_the_right_column() {
        let table = "Inter-|   Receive    |  Transmit\n face |bytes packets errs drop\n\
                     lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  wan0: 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36\n";
        assert_eq!(drops_in(table), Some(32));
        assert_eq!(drops_in("lo: 1"), None);
    }
}
