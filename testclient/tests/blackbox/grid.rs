//! `grid` against the reference cluster.

use std::fs;

use crate::reference::{Defect, Reference};
use crate::{said, testclient};

fn grid(defect: Defect, more: &str) -> std::process::Output {
    let cluster = Reference::start(3, defect);
    testclient(&format!("grid --servers {} --seconds 0.5 --cells S2,R8 {more}", cluster.list()))
}

#[test]
fn a_right_cluster_passes_in_both_formats() {
    for format in ["raw", "protobuf"] {
        let output = grid(Defect::None, &format!("--format {format} --threads 2 --seed 5"));
        let said = said(&output);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("seed 5"), "{said}");
        assert!(said.contains("| S2 ") && said.contains("| R8 "), "{said}");
        assert!(said.contains("No value was wrong or missing."), "{said}");
    }
}

#[test]
fn each_defect_is_named() {
    for (defect, expected, fails) in [
        (Defect::WrongValue, "wrong and 0 missing values", true),
        (Defect::WrongVersion, "wrong and 0 missing values", true),
        (Defect::MissesKeys, "no such key after an acknowledged PUT", true),
        (Defect::IdsMixedUp, "with another request's id", false),
        (Defect::LosesDatagrams, "of the datagrams were retries", false),
        (Defect::OmitsZeroCode, "leave errCode out", false),
        (Defect::RepliesTwice, "surplus replies", false),
        (Defect::AnswersOverload, "answers with code 3 (overloaded)", false),
    ] {
        let output = grid(defect, "");
        let said = said(&output);
        assert!(said.contains(expected), "{defect:?}: {said}");
        assert_eq!(output.status.code(), Some(i32::from(fails)), "{defect:?}: {said}");
    }
}

#[test]
fn a_dead_cluster_fails() {
    // A port that was free a moment ago; nothing listens there, so nothing answers.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let output = testclient(&format!("grid --servers {address} --seconds 0.1 --cells S1"));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("no request succeeded"), "{}", said(&output));
}

#[test]
fn clients_that_know_the_table_need_servers_that_tell_it() {
    for more in ["--cells R2,Z2", "--cells R2 --zero-hop"] {
        let cluster = Reference::start(2, Defect::None);
        let output = testclient(&format!("grid --servers {} --seconds 0.1 {more}", cluster.list()));
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("no server tells who holds which key"), "{said}");
    }
    let output = testclient("grid --servers 127.0.0.1:1 --cells S2 --zero-hop");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("there is no R cell"), "{}", said(&output));
}

#[test]
fn results_are_written_with_their_settings() {
    let cluster = Reference::start(2, Defect::None);
    let path = std::env::temp_dir().join(format!("violet-testclient-grid-{}.json", std::process::id()));
    let output = testclient(&format!(
        "grid --servers {} --seconds 0.2 --clients 4 --value-bytes 100 --seed 9 --json {}",
        cluster.list(),
        path.display()
    ));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let record: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(record["seed"], 9);
    assert_eq!(record["servers"].as_array().unwrap().len(), 2);
    assert_eq!(record["format"], "protobuf");
    assert_eq!(record["failed"], false);
    let cells = record["cells"].as_array().unwrap();
    assert_eq!(cells.iter().map(|cell| &cell["cell"]).collect::<Vec<_>>(), ["S4", "R4"]);
    assert!(cells.iter().all(|cell| 0.0 < cell["goodput_per_second"].as_f64().unwrap()));
}

#[test]
fn overload_is_looked_for_and_reported() {
    let cluster = Reference::start(2, Defect::None);
    let path = std::env::temp_dir().join(format!("violet-testclient-overload-{}.json", std::process::id()));
    let output = testclient(&format!(
        "grid --overload --seconds 0.1 --servers {} --json {}",
        cluster.list(),
        path.display()
    ));
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("of the best goodput"), "{said}");
    let text = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let record: serde_json::Value = serde_json::from_str(&text).unwrap();
    let clients = |name: &str| record["overload"][name].as_u64().unwrap();
    assert_eq!(clients("overload_clients"), 4 * clients("saturating_clients"));
}
