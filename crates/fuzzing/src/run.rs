//! A runner that gives a target its seeds and changes of them.
#![allow(clippy::disallowed_types, reason = "outside of the engine: panics come from all threads")]

use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;

use base::Prng;

use crate::Target;
use crate::mutate::{MAX_LEN, mutate};

/// The place and text of each panic of any thread: a panic of a server's thread does not come to
/// its client.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// An input that a target does not stand.
#[derive(Debug)]
pub struct Finding {
    /// The input that found it.
    pub input: Vec<u8>,
    /// The texts of the panics.
    pub panics: Vec<String>,
}

fn feed(target: &Target, input: &[u8]) -> Result<(), Finding> {
    let ended = panic::catch_unwind(AssertUnwindSafe(|| (target.feed)(input)));
    let mut panics = PANICS.lock().unwrap_or_else(|e| e.into_inner());
    let panics = std::mem::take(&mut *panics);
    match ended.is_ok() && panics.is_empty() {
        true => Ok(()),
        false => Err(Finding { input: input.to_vec(), panics }),
    }
}

/// Notes what panics say, instead of printing it. For a process that does nothing else.
pub fn note_panics() {
    panic::set_hook(Box::new(|info| {
        let mut all = PANICS.lock().unwrap_or_else(|e| e.into_inner());
        all.push(info.to_string());
    }));
}

/// Feeds a target its seeds, and then changes of them until `enough` inputs says so. All follow
/// from `seed`. Returns the number of inputs, or the first that is not stood.
pub fn run(
    target: &Target,
    seed: u64,
    mut enough: impl FnMut(u64) -> bool,
) -> Result<u64, Finding> {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{} has no seeds", target.name);
    let mut inputs = 0;
    for seed in seeds.iter().map(Vec::as_slice).chain([&[][..], &[0; MAX_LEN], &[0xff; 4096]]) {
        feed(target, seed)?;
        inputs += 1;
    }
    let mut rng = Prng::new(seed);
    let pick = |rng: &mut Prng| rng.below(seeds.len() as u64) as usize;
    while !enough(inputs) {
        let mut input = seeds[pick(&mut rng)].clone();
        let other = pick(&mut rng);
        mutate(&mut rng, &mut input, &seeds[other]);
        feed(target, &input)?;
        inputs += 1;
    }
    Ok(inputs)
}
