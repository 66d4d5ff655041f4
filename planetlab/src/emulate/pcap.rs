//! Packets of one node, written to a file that Wireshark and tcpdump read.
//!
//! The router must not wait for a disk, so a thread of its own writes; when it falls behind, packets are left out of the
//! file and counted, never out of the network. Packets are stamped when the router reads or writes them.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// Packets that wait for the disk.
const WAITING_MAX: usize = 4_096;
/// The file's type: packets start with the IP header.
const RAW_IP: u32 = 101;
const SNAP_BYTES: u32 = 65_535;

/// A running capture of one node.
#[derive(Debug)]
pub struct Capture {
    packets: SyncSender<(SystemTime, Box<[u8]>)>,
    /// Packets that the file lacks.
    pub left_out: u64,
}

impl Capture {
    /// Starts to write a file, which must not exist: a capture overwrites nothing.
    pub fn start(file: &Path) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create_new(file)?);
        write_head(&mut file)?;
        let (packets, waiting) = sync_channel(WAITING_MAX);
        thread::Builder::new().name("pcap".into()).spawn(move || write_all(file, &waiting))?;
        Ok(Self { packets, left_out: 0 })
    }

    /// Adds a packet, or counts it if the disk is behind or the file could not be written.
    pub fn add(&mut self, packet: &[u8]) {
        match self.packets.try_send((SystemTime::now(), packet.into())) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.left_out += 1,
        }
    }
}

fn write_head(file: &mut impl Write) -> io::Result<()> {
    file.write_all(&0xA1B2_C3D4_u32.to_le_bytes())?;
    file.write_all(&2_u16.to_le_bytes())?;
    file.write_all(&4_u16.to_le_bytes())?;
    file.write_all(&[0; 8])?;
    file.write_all(&SNAP_BYTES.to_le_bytes())?;
    file.write_all(&RAW_IP.to_le_bytes())
}

fn write_packet(file: &mut impl Write, at: SystemTime, packet: &[u8]) -> io::Result<()> {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let bytes = u32::try_from(packet.len()).unwrap_or(SNAP_BYTES);
    // The format has 32 bits for seconds, good until 2106.
    file.write_all(&(since.as_secs() as u32).to_le_bytes())?;
    file.write_all(&since.subsec_micros().to_le_bytes())?;
    file.write_all(&bytes.to_le_bytes())?;
    file.write_all(&bytes.to_le_bytes())?;
    file.write_all(packet)
}

fn write_all(mut file: impl Write, packets: &Receiver<(SystemTime, Box<[u8]>)>) {
    while let Ok((at, packet)) = packets.recv() {
        if write_packet(&mut file, at, &packet).is_err() {
            return;
        }
        // What is there is on disk whenever nothing waits, so that a file can be read while it grows.
        let mut failed = false;
        while let Ok((at, packet)) = packets.try_recv() {
            failed |= write_packet(&mut file, at, &packet).is_err();
        }
        if failed || file.flush().is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_file_has_the_form_that_others_read() {
        let mut file = Vec::new();
        write_head(&mut file).expect("memory");
        write_packet(&mut file, UNIX_EPOCH + Duration::from_micros(3_000_007), &[0x45, 1, 2])
            .expect("memory");
        let head = "d4c3b2a1 0200 0400 00000000 00000000 ffff0000 65000000".replace(' ', "");
        let packet = "03000000 07000000 03000000 03000000 450102".replace(' ', "");
        let hex: String = file.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, head + &packet);
    }

    #[test]
    fn an_existing_file_is_not_overwritten() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("n1.pcap");
        Capture::start(&file).expect("new");
        assert_eq!(Capture::start(&file).expect_err("exists").kind(), io::ErrorKind::AlreadyExists);
    }
}
