//! `report`: all probes and runs of a directory on one page.
//!
//! [`results`] reads what the test client wrote, [`tables`] makes tables of results and probes, [`html`] and
//! [`markdown`] write them down. The page is one file without script and without a reference to anything outside it.

pub mod overview;
pub mod results;
mod words;
