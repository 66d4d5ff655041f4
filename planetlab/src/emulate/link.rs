//! stand-in
use std::path::Path;
use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub struct Fate {
    pub at: Duration,
    pub damaged_bit: Option<usize>,
}

#[derive(Debug, Clone, Default)]
pub struct Site {
    pub id: String,
    pub area: String,
}

#[derive(Debug)]
pub struct Links {
    pub delay: Duration,
    nodes: usize,
}

impl Links {
    pub fn from_file(
        _file: &Path,
        _nodes: Option<u32>,
        _sites: &[String],
        _seed: Option<u64>,
    ) -> Result<Self, String> {
        Err("x".into())
    }
    pub fn from_preset(
        _preset: &str,
        nodes: Option<u32>,
        _sites: &[String],
        _seed: Option<u64>,
    ) -> Result<Self, String> {
        Self::uniform(nodes.unwrap_or(5) as usize, "")
    }
    pub fn uniform(nodes: usize, _change: &str) -> Result<Self, String> {
        Ok(Self { delay: Duration::from_millis(20), nodes })
    }
    pub fn nodes(&self) -> usize {
        self.nodes
    }
    pub fn sites(&self) -> Vec<Site> {
        vec![]
    }
    pub fn mtu_bytes(&self) -> u32 {
        1500
    }
    pub fn length(&self) -> Option<Duration> {
        None
    }
    pub fn send(
        &mut self,
        now: Duration,
        _from: usize,
        _to: usize,
        _bytes: usize,
        _group: Option<u64>,
    ) -> Result<Vec<Fate>, &'static str> {
        Ok(vec![Fate { at: now + self.delay, damaged_bit: None }])
    }
    pub fn next_event(&self) -> Option<Duration> {
        None
    }
    pub fn play(&mut self, _now: Duration) -> Vec<String> {
        vec![]
    }
    pub fn change(&mut self, _now: Duration, _line: &str) -> Result<(), String> {
        Err("x".into())
    }
}
