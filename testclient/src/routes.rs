//! Which of the listed servers hold a key, for clients that ask those and no others.
//!
//! The table is learned once, from the first server that tells it: for the length of a cell on a healthy cluster that is
//! as good as new, and a server that is asked wrongly passes the request on. Members that are not on the list are not
//! asked.

use std::net::SocketAddr;

use violet_client::placement::{Placement, stored_key};
use violet_client::{Client, Format, Key};

use crate::values::Random;

/// The way to the holders of keys.
pub struct Routes {
    placement: Placement,
    format: Format,
    servers: usize,
    /// The place on the list of each member of the table.
    places: Vec<Option<usize>>,
}

impl Routes {
    /// Asks the servers, one after the other, until one tells who holds which key.
    ///
    /// # Errors
    /// One sentence, when none does.
    pub fn learn(servers: &[SocketAddr], format: Format) -> Result<Self, String> {
        let client = Client::new(servers.to_vec()).map_err(|error| error.to_string())?;
        let mut client = client.with_format(format);
        let mut refused = String::from("there is none");
        for &server in servers {
            match client.fetch_placement(server) {
                Ok(placement) => {
                    let place = |address: SocketAddr| servers.iter().position(|server| *server == address);
                    let places = placement.members().iter().map(|member| place(member.address)).collect();
                    return Ok(Self { placement, format, servers: servers.len(), places });
                }
                Err(error) => refused = error.to_string(),
            }
        }
        Err(format!(
            "no server tells who holds which key, as Z cells need it (command 0x28); the last: {refused}"
        ))
    }

    /// The place on the list of the server to ask; a random one where no holder is listed.
    pub fn server(&self, key: &Key, is_write: bool, random: &mut Random) -> usize {
        let key = stored_key(self.format, key);
        let replicas = self.placement.replicas(key.as_bytes());
        let first = if is_write { 0 } else { random.below(replicas.len()) };
        let in_turn = replicas[first..].iter().chain(&replicas[..first]);
        let listed = in_turn.filter_map(|number| self.places[usize::from(*number)]).next();
        listed.unwrap_or_else(|| random.below(self.servers))
    }
}
