//! A store in a thread with one planted defect, for the tests of those who are to find it.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::thread::{self, JoinHandle};

use violet_client::wire::{Accept, DATAGRAM_BYTES_MAX, decode_request, encode_response};
use violet_client::{Key, Operation, Response, Status, Value};

/// What is wrong with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Nothing.
    None,
    /// One write in so many is acknowledged, and the key is gone afterwards.
    LosesWrites(u32),
    /// One overwrite in so many is acknowledged and not done.
    KeepsOld(u32),
    /// One removal in so many is acknowledged and not done.
    KeepsRemoved(u32),
    /// So many first reads of every key find nothing.
    MissesAtFirst(u32),
}

/// A running store; it ends when this is dropped.
pub struct Store {
    /// Where it listens.
    pub address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    /// Starts an empty store.
    pub fn start(defect: Defect) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let thread = thread::spawn(move || serve(&socket, defect));
        Self { address, thread: Some(thread) }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // An empty datagram ends it.
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[], self.address).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(socket: &UdpSocket, defect: Defect) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let mut values: BTreeMap<Key, (Vec<u8>, i32)> = BTreeMap::new();
    let mut reads: BTreeMap<Key, u32> = BTreeMap::new();
    let mut count = 0;
    let mut is_due = |one_in: u32| {
        count += 1;
        count % one_in == 0
    };
    loop {
        let (bytes, client) = socket.recv_from(&mut buffer).unwrap();
        if bytes == 0 {
            return;
        }
        let request = decode_request(&buffer[..bytes], Accept::Auto).unwrap();
        let mut response = Response::of_status(request.id, Status::Success);
        match request.operation {
            Operation::Put { key, value } => match defect {
                Defect::LosesWrites(one_in) if is_due(one_in) => drop(values.remove(&key)),
                Defect::KeepsOld(one_in) if values.contains_key(&key) && is_due(one_in) => {}
                _ => drop(values.insert(key, (value.bytes.to_vec(), value.version))),
            },
            Operation::Remove { key } => match defect {
                Defect::KeepsRemoved(one_in) if values.contains_key(&key) && is_due(one_in) => {}
                _ if values.remove(&key).is_none() => response.status = Status::NoSuchKey,
                _ => {}
            },
            Operation::Get { key } => {
                let reads = reads.entry(key).or_default();
                *reads += 1;
                let misses = matches!(defect, Defect::MissesAtFirst(first) if *reads <= first);
                match values.get(&key).filter(|_| !misses) {
                    Some((bytes, version)) => response.value = Some(Value { bytes, version: *version }),
                    None => response.status = Status::NoSuchKey,
                }
            }
            other => panic!("{other:?}"),
        }
        let mut reply = Vec::new();
        encode_response(request.format, &response, &mut reply);
        socket.send_to(&reply, client).unwrap();
    }
}
