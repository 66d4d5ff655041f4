//! How many preference lists one core looks up in a second: the only time that is measured here, printed
//! and compared with nothing.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use violet::cluster::layout::{Layout, Layouts};
use violet::cluster::placement::suggested_partitions_log2;
use violet::cluster::{ClusterView, Member, MemberState};
use violet::ids::MemberId;
use violet_client::Key;

use crate::paths::key_of;

/// Keys that take turns: more than the caches next to the core hold with their lists.
const KEYS: usize = 65_536;
const MEASURED: Duration = Duration::from_millis(400);
const ROUNDS: usize = 9;
const REPLICAS: usize = 3;

pub fn run() {
    let keys: Vec<Key> = (0..KEYS).map(key_of).collect();
    println!("look-ups a second on one core, key to replicas, median of {ROUNDS} (least to most)");
    for members in [5, 15, 60] {
        let view = view_of(members);
        let mut rates: Vec<f64> = (0..ROUNDS).map(|_| rate(&view, &keys)).collect();
        rates.sort_by(f64::total_cmp);
        let millions = |place: usize| rates[place] / 1e6;
        println!(
            "{members:>3} members: {:6.1} million ({:.1} to {:.1})",
            millions(ROUNDS / 2),
            millions(0),
            millions(ROUNDS - 1)
        );
    }
}

fn view_of(members: u16) -> ClusterView {
    let member = |port: u16| {
        let address: SocketAddr = ([127, 0, 0, 1], port).into();
        Member { id: MemberId::of(address), address, state: MemberState::Alive, peer: Arc::default() }
    };
    let members: Vec<Member> = (4410..4410 + members).map(member).collect();
    let ids: BTreeSet<MemberId> = members.iter().map(|member| member.id).collect();
    let layout = Layout::new(ids, REPLICAS, suggested_partitions_log2(REPLICAS));
    let me = members[0].id;
    ClusterView::new(members, me, &Layouts::new(layout))
}

fn rate(view: &ClusterView, keys: &[Key]) -> f64 {
    let begun = Instant::now();
    let mut done = 0_u64;
    while begun.elapsed() < MEASURED {
        for key in keys {
            black_box(view.primaries(view.partition_of(black_box(key).as_bytes())));
        }
        done += keys.len() as u64;
    }
    done as f64 / begun.elapsed().as_secs_f64()
}
