//! What every grader begins with: one request after the other on a few keys.

use violet_client::{Format, Operation, Status};

use crate::cluster::{Cluster, StageResult};

/// Rounds through random servers, so that front end and owner are often different servers.
const RANDOM_ROUNDS: usize = 8;

/// Every server answers.
pub fn alive(cluster: &mut Cluster) -> StageResult {
    cluster.live().into_iter().try_for_each(|server| cluster.alive(server))
}

/// Value lengths of the graders; the raw generation also has 15,000 (2015), which 2016 servers refuse.
const SIZES: [usize; 4] = [8, 32, 2_048, 10_000];

/// PUT GET REMOVE GET through the first server.
pub fn through_first(cluster: &mut Cluster) -> StageResult {
    SIZES.iter().try_for_each(|&bytes| put_get_remove_get(cluster, bytes, |_| 0))
}

/// The same through servers drawn anew for each request.
pub fn through_random(cluster: &mut Cluster) -> StageResult {
    for _ in 0..RANDOM_ROUNDS {
        SIZES.iter().try_for_each(|&bytes| put_get_remove_get(cluster, bytes, Cluster::any))?;
    }
    Ok(())
}

fn put_get_remove_get(
    cluster: &mut Cluster,
    value_bytes: usize,
    mut server: impl FnMut(&mut Cluster) -> usize,
) -> StageResult {
    let key = cluster.fresh_key();
    let value = cluster.random.bytes(value_bytes);
    let mut draw = |cluster: &mut Cluster| server(cluster);
    let via = draw(cluster);
    cluster.put(via, key, &value, 1)?;
    let via = draw(cluster);
    cluster.get(via, key, &value, 1)?;
    let via = draw(cluster);
    cluster.remove(via, key)?;
    let via = draw(cluster);
    cluster.get_nothing(via, key)
}

/// Any version comes back, also smaller than the one before, and the latest PUT wins.
pub fn versions(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    let mut versions = vec![0, 1, 2, i32::MAX, 5, -1, i32::MIN, 0];
    versions.extend((0..8).map(|_| cluster.random.next() as i32));
    for version in versions {
        let value = cluster.random.bytes(20);
        let via = cluster.any();
        cluster.put(via, key, &value, version)?;
        let via = cluster.any();
        cluster.get(via, key, &value, version)?;
    }
    Ok(())
}

/// A second PUT replaces the first, whether it is longer or shorter.
pub fn overwrite(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    for (version, value_bytes) in [(1, 10), (2, 5_000), (3, 1), (4, 5_000), (5, 5_000)] {
        let value = cluster.random.bytes(value_bytes);
        let via = cluster.any();
        cluster.put(via, key, &value, version)?;
        let via = cluster.any();
        cluster.get(via, key, &value, version)?;
    }
    Ok(())
}

/// A removed key is gone; removing it again says "no such key"; it can be written again.
pub fn remove(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    let via = cluster.any();
    cluster.expect(via, Operation::Remove { key }, Status::NoSuchKey)?;
    for round in 0..3 {
        let value = cluster.random.bytes(40);
        let via = cluster.any();
        cluster.put(via, key, &value, round)?;
        let via = cluster.any();
        cluster.remove(via, key)?;
        let via = cluster.any();
        cluster.get_nothing(via, key)?;
        let via = cluster.any();
        cluster.expect(via, Operation::Remove { key }, Status::NoSuchKey)?;
    }
    Ok(())
}

/// Unknown commands get code 5 from every server.
pub fn invalid_command(cluster: &mut Cluster) -> StageResult {
    let mut commands = vec![9, 99, 0];
    match cluster.format {
        Format::Raw => commands.push(0xff),
        Format::Protobuf => commands.push(u32::MAX),
    }
    for command in commands {
        let via = cluster.any();
        cluster.expect(via, Operation::Unknown(command), Status::UnknownCommand)?;
        cluster.expect(0, Operation::Unknown(command), Status::UnknownCommand)?;
    }
    Ok(())
}
