//! What somebody meant who wrote a word wrong.
//!
//! The distance is that of Damerau and Levenshtein in its simple form: letters changed, left out, put in, or
//! swapped with their neighbour. A word that differs in more than a third of its letters is no typo but another word.

/// The allowed word that is nearest to this one, if one is near.
pub fn nearest<'a>(word: &str, allowed: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distances = allowed.into_iter().map(|candidate| (distance(word, candidate), candidate));
    let (distance, candidate) = distances.min_by_key(|(distance, _)| *distance)?;
    let letters_max = word.chars().count().max(candidate.chars().count());
    (distance <= letters_max.div_ceil(3)).then_some(candidate)
}

/// The end of a sentence about a wrong word: the nearest right one, or all of them.
pub fn instead<'a>(word: &str, allowed: impl IntoIterator<Item = &'a str>) -> String {
    let allowed: Vec<&str> = allowed.into_iter().collect();
    match nearest(word, allowed.iter().copied()) {
        Some(nearest) => format!("did you mean {nearest:?}?"),
        None => format!("allowed: {}", allowed.join(", ")),
    }
}

fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.to_lowercase().replace('_', "-").chars().collect();
    let right: Vec<char> = right.to_lowercase().chars().collect();
    let mut rows = vec![(0..=right.len()).collect::<Vec<usize>>()];
    for (row, &letter) in left.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, &other) in right.iter().enumerate() {
            let changed = rows[row][column] + usize::from(letter != other);
            let mut least = changed.min(rows[row][column + 1] + 1).min(next[column] + 1);
            let is_swap = 0 < row && 0 < column && left[row - 1] == other && right[column - 1] == letter;
            if is_swap {
                least = least.min(rows[row - 1][column - 1] + 1);
            }
            next.push(least);
        }
        rows.push(next);
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_recognised_and_other_words_are_not() {
        let allowed = ["seconds", "warm-up", "value-bytes", "keys"];
        for (word, expected) in [
            ("secnds", Some("seconds")),
            ("second", Some("seconds")),
            ("warmup", Some("warm-up")),
            ("warm_up", Some("warm-up")),
            ("vlaue-bytes", Some("value-bytes")),
            ("Keys", Some("keys")),
            ("threads", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, allowed), expected, "{word}");
        }
        assert_eq!(instead("kyes", allowed), "did you mean \"keys\"?");
        assert_eq!(instead("threads", ["a", "b"]), "allowed: a, b");
    }
}
