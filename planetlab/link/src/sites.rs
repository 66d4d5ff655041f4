//! Round-trip times between 25 public sites, as measured.
//!
//! The tables are Microsoft's "Azure network round-trip latency statistics" (data set of 2026-07-30, 25 of 54 regions,
//! whole milliseconds), licence CC BY 4.0; see the README beside them for what was changed. One way is half of the round trip.

use std::sync::LazyLock;
use std::time::Duration;

const SITES: &str = include_str!("../../data/sites.csv");
const RTT_P50: &str = include_str!("../../data/azure_rtt_p50_2026-07-30.csv");
const RTT_P95: &str = include_str!("../../data/azure_rtt_p95_2026-07-30.csv");

/// A place with machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// How it is named in commands.
    pub id: String,
    /// Where it is.
    pub place: String,
    /// `na sa eu me af as oc`.
    pub area: String,
}

/// All sites and what is between them.
#[derive(Debug)]
struct Tables {
    sites: Vec<Site>,
    p50: Vec<Vec<Duration>>,
    p95: Vec<Vec<Duration>>,
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let sites: Vec<Site> = SITES.lines().skip(1).filter_map(site).collect();
    Tables { p50: matrix(RTT_P50), p95: matrix(RTT_P95), sites }
});

/// All sites, area by area.
#[must_use]
pub fn all() -> &'static [Site] {
    &TABLES.sites
}

/// The site with this id.
#[must_use]
pub fn find(id: &str) -> Option<&'static Site> {
    all().iter().find(|site| site.id == id)
}

/// The median and the 95th percentile of the round-trip time between two different sites, by id.
#[must_use]
pub fn rtt(from: &str, to: &str) -> Option<(Duration, Duration)> {
    let place = |id: &str| all().iter().position(|site| site.id == id);
    let (row, column) = (place(from)?, place(to)?);
    (row != column).then(|| (TABLES.p50[row][column], TABLES.p95[row][column]))
}

/// `id,name,"place, with a comma",area`.
fn site(line: &str) -> Option<Site> {
    let mut cells = vec![String::new()];
    let mut is_quoted = false;
    for letter in line.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            _ => cells.last_mut()?.push(letter),
        }
    }
    let [id, _, place, area] = <[String; 4]>::try_from(cells).ok()?;
    Some(Site { id, place, area })
}

/// Rows of whole milliseconds behind a name; the cell of a site to itself is empty.
fn matrix(text: &str) -> Vec<Vec<Duration>> {
    let cell = |cell: &str| Duration::from_millis(cell.parse().unwrap_or(0));
    text.lines().skip(1).map(|line| line.split(',').skip(1).map(cell).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_whole_and_in_one_order() {
        assert_eq!(all().len(), 25);
        for (text, table) in [(RTT_P50, &TABLES.p50), (RTT_P95, &TABLES.p95)] {
            let ids: Vec<&str> = all().iter().map(|site| site.id.as_str()).collect();
            assert_eq!(text.lines().next().map(|line| line.split(',').skip(1).collect()), Some(ids.clone()));
            assert_eq!(
                text.lines().skip(1).filter_map(|line| line.split(',').next()).collect::<Vec<_>>(),
                ids
            );
            for (row, line) in table.iter().enumerate() {
                assert_eq!(line.len(), 25);
                assert!(line.iter().enumerate().all(|(column, rtt)| rtt.is_zero() == (row == column)));
            }
        }
    }

    #[test]
    fn a_pair_is_what_the_page_says() {
        let millis = |p50, p95| Some((Duration::from_millis(p50), Duration::from_millis(p95)));
        assert_eq!(rtt("westus2", "westus"), millis(24, 25));
        assert_eq!(rtt("westus2", "australiaeast"), millis(160, 179));
        assert_eq!((rtt("westus", "westus"), rtt("westus", "nowhere")), (None, None));
        assert_eq!(
            find("uksouth").map(|site| (site.place.as_str(), site.area.as_str())),
            Some(("London, UK", "eu"))
        );
    }
}
