//! The system calls of the emulator that no safe wrapper has: making and setting up a TUN device by ioctl,
//! priorities, and large receive buffers. Everything `unsafe` of this package is here, and nothing else.
//!
//! Devices are set up by ioctl, not by the `ip` program, so 64 of them take milliseconds.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

const NAME_BYTES: usize = 16;

/// The kernel's `struct ifreq` on 64-bit Linux: a name and 24 bytes whose meaning depends on the request.
#[repr(C)]
pub struct Request {
    name: [u8; NAME_BYTES],
    value: [u8; 24],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

impl Request {
    fn new(device: &str, value: &[u8]) -> Self {
        assert!(device.len() < NAME_BYTES && value.len() <= 24, "the emulator names its own devices");
        let mut request = Self { name: [0; NAME_BYTES], value: [0; 24] };
        request.name[..device.len()].copy_from_slice(device.as_bytes());
        request.value[..value.len()].copy_from_slice(value);
        request
    }

    /// A request whose value is an IPv4 socket address.
    fn with_address(device: &str, address: Ipv4Addr) -> Self {
        let mut value = [0; 8];
        value[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        value[4..].copy_from_slice(&address.octets());
        Self::new(device, &value)
    }
}

nix::ioctl_write_ptr_bad!(attach_tun, libc::TUNSETIFF, Request);
nix::ioctl_write_ptr_bad!(set_address, libc::SIOCSIFADDR, Request);
nix::ioctl_write_ptr_bad!(set_netmask, libc::SIOCSIFNETMASK, Request);
nix::ioctl_write_ptr_bad!(set_mtu, libc::SIOCSIFMTU, Request);
nix::ioctl_write_ptr_bad!(set_queue, libc::SIOCSIFTXQLEN, Request);
nix::ioctl_write_ptr_bad!(set_flags, libc::SIOCSIFFLAGS, Request);

/// What a device is given.
#[derive(Debug, Clone, Copy)]
pub struct Device<'a> {
    /// Its name, unique within its namespace.
    pub name: &'a str,
    /// Its only address.
    pub address: Ipv4Addr,
    /// The mask of the whole emulated network; the kernel makes the one route from it.
    pub netmask: Ipv4Addr,
    /// Longest packet.
    pub mtu: u32,
    /// Packets that wait for the router before the kernel drops.
    pub queue_packets: u32,
}

/// Makes a TUN device in the namespace of the calling thread and switches it on. The device lives as long as the
/// file that is returned, which does not block.
pub fn open_tun(device: &Device<'_>) -> io::Result<File> {
    let tun =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI) as u16;
    let attach = Request::new(device.name, &flags.to_ne_bytes());
    // SAFETY: the descriptor is open and the request is a whole `ifreq` that outlives the call, which keeps no pointer.
    unsafe { attach_tun(tun.as_raw_fd(), &attach) }?;
    let any = any_socket()?;
    let (name, socket) = (device.name, any.as_raw_fd());
    let address = Request::with_address(name, device.address);
    let netmask = Request::with_address(name, device.netmask);
    let mtu = Request::new(name, &device.mtu.to_ne_bytes());
    let queue = Request::new(name, &device.queue_packets.to_ne_bytes());
    // SAFETY: as above, on a socket of the same namespace.
    unsafe {
        set_mtu(socket, &mtu)?;
        set_queue(socket, &queue)?;
        set_address(socket, &address)?;
        set_netmask(socket, &netmask)?;
    }
    switch_on(&any, name)?;
    Ok(tun)
}

/// Switches the loopback device of the calling thread's namespace on.
pub fn switch_loopback_on() -> io::Result<()> {
    switch_on(&any_socket()?, "lo")
}

fn switch_on(socket: &OwnedFd, device: &str) -> io::Result<()> {
    let flags = (libc::IFF_UP | libc::IFF_RUNNING) as u16;
    let request = Request::new(device, &flags.to_ne_bytes());
    // SAFETY: the socket is open and the request is a whole `ifreq` that outlives the call.
    unsafe { set_flags(socket.as_raw_fd(), &request) }?;
    Ok(())
}

/// A socket that only carries device requests.
fn any_socket() -> io::Result<OwnedFd> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    Ok(socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?)
}

/// Gives the calling thread real-time priority, first in first out. Threads and processes that it starts do not get it.
pub fn take_real_time_priority(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the structure outlives the call, which only reads it; 0 means the calling thread.
    let result =
        unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Puts the calling thread before all others that have no real-time priority, where that is allowed.
pub fn take_highest_niceness() -> bool {
    // SAFETY: the call takes no memory; 0 means the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) == 0 }
}

/// Asks for a receive buffer beyond the system's limit, which root may. A socket that may not keeps what it has.
pub fn force_receive_buffer(socket: &UdpSocket, bytes: i32) {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the option's value is an integer of the stated size that outlives the call.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            (&raw const bytes).cast(),
            size,
        );
    }
}
