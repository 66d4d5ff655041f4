//! What servers' processes use while a load goes on: processor time and memory from `/proc`, datagrams and bytes
//! from the servers' own counts where they tell them (Violet's private statistics).
//!
//! Processes are known when the plan started them, or when a server on loopback reports its process and that owns the
//! server's port. What one server does not tell is not known of all.

use std::fs;
use std::net::SocketAddr;

use serde_json::Value;
use violet_client::{Client, Format, Operation, RetryPolicy, Status};

use crate::flame::cluster::processor_nanos;
use crate::machine;
use crate::result::Cost;

/// Reads the meters of a set of servers.
#[derive(Debug)]
pub struct Meter {
    servers: Vec<SocketAddr>,
    pids: Option<Vec<u32>>,
    client: Client,
}

/// One look at the meters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    processor_nanos: Option<u64>,
    resident_bytes: Option<u64>,
    datagrams_sent: Option<u64>,
    bytes_sent: Option<u64>,
    retransmissions: Option<u64>,
}

impl Meter {
    /// For these servers; their processes, where the caller knows them.
    ///
    /// # Errors
    /// A sentence, when no socket can be opened.
    pub fn new(servers: &[SocketAddr], format: Format, pids: Option<Vec<u32>>) -> Result<Self, String> {
        let client = Client::new(servers.to_vec()).map_err(|error| error.to_string())?;
        // A server that does not know the question answers at once; a dead one must not cost seconds.
        let waits = [200, 400].map(std::time::Duration::from_millis).to_vec();
        let policy =
            RetryPolicy { waits, overload_wait_max: std::time::Duration::ZERO, overload_rounds_max: 1 };
        let mut client = client.with_format(format).with_policy(policy);
        let pids = pids.or_else(|| reported_pids(&mut client, servers));
        Ok(Self { servers: servers.to_vec(), pids, client })
    }

    /// Looks at all meters.
    pub fn read(&mut self) -> Reading {
        let replies = self.client.ask_each(&self.servers, Operation::GetStats);
        let texts =
            replies.into_iter().map(|reply| reply.ok().filter(|reply| reply.status == Status::Success));
        let accounts: Vec<Option<Value>> =
            texts.map(|reply| serde_json::from_str(&reply?.text()?).ok()).collect();
        let total = |path: &str| -> Option<u64> {
            accounts.iter().map(|account| account.as_ref()?.pointer(path)?.as_u64()).sum()
        };
        Reading {
            processor_nanos: self.pids.as_deref().and_then(processor_nanos),
            resident_bytes: self.pids.as_deref().and_then(resident_bytes),
            datagrams_sent: total("/counters/send_datagrams"),
            bytes_sent: total("/counters/send_bytes"),
            retransmissions: total("/counters/retransmissions"),
        }
    }
}

impl Reading {
    /// What was used between two looks; `None` when not even processor time is known.
    pub fn cost_since(&self, before: &Self) -> Option<Cost> {
        let since = |after: Option<u64>, before: Option<u64>| after?.checked_sub(before?);
        Some(Cost {
            processor_seconds: since(self.processor_nanos, before.processor_nanos)? as f64 / 1e9,
            resident_bytes: self.resident_bytes?,
            datagrams_sent: since(self.datagrams_sent, before.datagrams_sent),
            bytes_sent: since(self.bytes_sent, before.bytes_sent),
            retransmissions: since(self.retransmissions, before.retransmissions),
        })
    }
}

/// The processes of servers on loopback, as they report them and as the kernel confirms it.
pub fn reported_pids(client: &mut Client, servers: &[SocketAddr]) -> Option<Vec<u32>> {
    if !servers.iter().all(|server| server.ip().is_loopback()) {
        return None;
    }
    let replies = client.ask_each(servers, Operation::GetPid);
    let pid = |(server, reply): (&SocketAddr, Result<violet_client::Reply, _>)| {
        let pid = reply.ok()?.pid?;
        if machine::owns_udp_port(pid, *server) { u32::try_from(pid).ok() } else { None }
    };
    servers.iter().zip(replies).map(pid).collect()
}

/// Resident memory of these processes together.
fn resident_bytes(pids: &[u32]) -> Option<u64> {
    let of_process = |pid: &u32| -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().split(' ').next()?.parse::<u64>().ok()? * 1024)
    };
    pids.iter().map(of_process).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::thread;
    use violet_client::Response;
    use violet_client::wire::{Accept, decode_request, encode_response};

    #[test]
    fn a_cost_is_a_difference_and_what_is_unknown_stays_so() {
        let before = Reading {
            processor_nanos: Some(1_000_000_000),
            resident_bytes: Some(7),
            datagrams_sent: Some(10),
            bytes_sent: None,
            retransmissions: None,
        };
        let after = Reading { processor_nanos: Some(1_500_000_000), datagrams_sent: Some(25), ..before };
        let cost = after.cost_since(&before).unwrap();
        assert_eq!((cost.processor_seconds, cost.resident_bytes), (0.5, 7));
        assert_eq!((cost.datagrams_sent, cost.bytes_sent), (Some(15), None));
        assert_eq!(Reading::default().cost_since(&before), None);
        assert_eq!(before.cost_since(&after), None, "a server that was started anew in between");
    }

    /// A server that answers every question with this text, or that it does not know the command.
    fn server(account: Option<&'static str>) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 2_000];
            while let Ok((bytes, client)) = socket.recv_from(&mut buffer) {
                let request = decode_request(&buffer[..bytes], Accept::Auto).unwrap();
                let mut response = Response::of_status(request.id, Status::UnknownCommand);
                if let Some(text) = account.filter(|_| request.operation == Operation::GetStats) {
                    response.status = Status::Success;
                    response.value = Some(violet_client::Value { bytes: text.as_bytes(), version: 0 });
                }
                let mut reply = Vec::new();
                encode_response(request.format, &response, &mut reply);
                socket.send_to(&reply, client).unwrap();
            }
        });
        address
    }

    #[test]
    fn servers_that_do_not_count_repeats_are_not_taken_for_servers_without_any() {
        let violet = r#"{"counters": {"send_datagrams": 9, "retransmissions": 4}}"#;
        let older = r#"{"counters": {"send_datagrams": 9}}"#;
        let read = |accounts: &[Option<&'static str>]| {
            let servers: Vec<SocketAddr> = accounts.iter().map(|account| server(*account)).collect();
            let reading = Meter::new(&servers, Format::Protobuf, Some(Vec::new())).unwrap().read();
            (reading.datagrams_sent, reading.retransmissions)
        };
        assert_eq!(read(&[Some(violet), Some(violet)]), (Some(18), Some(8)));
        assert_eq!(read(&[Some(violet), Some(older)]), (Some(18), None));
        assert_eq!(read(&[Some(violet), None]), (None, None));
    }

    #[test]
    fn memory_of_processes_can_be_read() {
        assert!(resident_bytes(&[std::process::id()]).is_some_and(|bytes| 0 < bytes));
        assert_eq!(resident_bytes(&[u32::MAX]), None);
    }
}
