//! Signs of life: which servers of a list answer, and a line that names those that do not.

use std::net::SocketAddr;
use std::time::Duration;

use violet_client::{Format, Status};

use crate::batch;
use crate::load::{Ask, Call};

/// How long a sign of life may take, try by try.
const LIFE_WAITS: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(500), Duration::from_millis(1_000)];

/// How long one that was silent before is waited for: it may have come back.
const AGAIN_WAITS: [Duration; 1] = [Duration::from_millis(250)];

/// As [`alive`], when it is known which were alive before.
///
/// # Errors
/// Sockets that cannot be opened.
pub fn still_alive(servers: &[SocketAddr], before: &[bool], format: Format) -> Result<Vec<bool>, String> {
    let mut now = vec![false; servers.len()];
    for (was_alive, waits) in [(true, LIFE_WAITS.as_slice()), (false, AGAIN_WAITS.as_slice())] {
        let places: Vec<usize> = (0..servers.len()).filter(|&place| before[place] == was_alive).collect();
        let chosen: Vec<SocketAddr> = places.iter().map(|&place| servers[place]).collect();
        if !chosen.is_empty() {
            let found = alive_within(&chosen, format, waits)?;
            places.into_iter().zip(found).for_each(|(place, alive)| now[place] = alive);
        }
    }
    Ok(now)
}

/// For each server whether it gives a sign of life in this format.
///
/// # Errors
/// Sockets that cannot be opened.
pub fn alive(servers: &[SocketAddr], format: Format) -> Result<Vec<bool>, String> {
    alive_within(servers, format, &LIFE_WAITS)
}

fn alive_within(servers: &[SocketAddr], format: Format, waits: &[Duration]) -> Result<Vec<bool>, String> {
    let mut alive = vec![false; servers.len()];
    let mut queue = 0..servers.len();
    let next = |_: &mut Vec<u8>| Some(Call { server: queue.next()?, ask: Ask::IsAlive });
    let on_end = |call: &Call, end: crate::load::End<'_>| {
        // The raw generation answers "unknown command" to the probe; an overloaded server lives as well.
        let is_sign = |status| matches!(status, Status::Success | Status::UnknownCommand | Status::Overload);
        alive[call.server] = end.status().is_some_and(is_sign);
    };
    batch::run(servers, format, waits, servers.len().max(1), next, on_end)?;
    Ok(alive)
}

/// What is wrong with a list whose servers do not all answer: one line that names them, and what to look at.
pub fn silence_text(servers: &[SocketAddr], alive: &[bool], format: Format) -> Option<String> {
    let silent: Vec<String> = servers
        .iter()
        .zip(alive)
        .filter(|(_, alive)| !**alive)
        .map(|(server, _)| server.to_string())
        .collect();
    if silent.is_empty() {
        return None;
    }
    let shown = silent[..silent.len().min(8)].join(", ");
    let more = silent.len().saturating_sub(8);
    let more = if 0 < more { format!(" and {more} more") } else { String::new() };
    let of = match silent.len() == servers.len() {
        true if servers.len() == 1 => "the only server does not answer".to_owned(),
        true => format!("none of the {} servers answers", servers.len()),
        false => format!("{} of {} servers do not answer", silent.len(), servers.len()),
    };
    Some(format!("{of} in the {format:?} format: {shown}{more}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn silent_servers_are_named() {
        let servers: Vec<SocketAddr> =
            (1..4).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).collect();
        assert_eq!(silence_text(&servers, &[true; 3], Format::Raw), None);
        assert_eq!(
            silence_text(&servers, &[true, false, true], Format::Protobuf).unwrap(),
            "1 of 3 servers do not answer in the Protobuf format: 127.0.0.1:2"
        );
        let none = silence_text(&servers, &[false; 3], Format::Raw).unwrap();
        assert!(none.starts_with("none of the 3 servers answers in the Raw format: 127.0.0.1:1, "), "{none}");
    }
}
