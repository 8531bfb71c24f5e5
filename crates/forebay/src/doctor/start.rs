//! Whether a server would start: by what it looks at itself before it writes anything.
//!
//! The devices are opened for reading, so it is asked only where no server runs.

use std::path::Path;

use base::ErrorKind;
use model::request;
use pool::Pool;

use super::finding::{Finding, Level};
use crate::config::{Complete, ServeConfig};
use crate::control::client::ask;
use crate::error::CommandError;
use crate::host::home::not_emptied;
use crate::host::world::World;
use crate::serve::cache_life::preflight;
use crate::serve::overcommit;

const CHECK: &str = "start";

/// Looks at the pool and its cache as a start does, and returns what that would say, in the same
/// words. `is_used`: the devices have held a pool.
pub fn check(config: &ServeConfig, is_used: bool) -> Vec<Finding> {
    let refused = |e: CommandError| {
        let todo = "forebay serve refuses to start so; \"The pool cannot be served, or is to be \
                    checked\" in docs/operations.md says what helps";
        vec![Finding::new(Level::Problem, CHECK, e.to_string(), todo)]
    };
    let opened =
        World::new(*config.said.io.backend.said(), &config.said.devices).and_then(|world| {
            world.look_at_devices(&config.said.devices).map(|opened| (world, opened))
        });
    let (world, files) = match opened {
        Ok((world, opened)) => (world, opened.files),
        Err(e) => return refused(e),
    };
    if is_used && let Err(e) = not_emptied(&files) {
        return refused(e);
    }
    if let Err(e) = preflight(&config.said.cache, files.iter().map(|f| Path::new(&f.path))) {
        return refused(e);
    }
    let (rt, settings) = (world.rt.clone(), config.settings.settings().pool.clone());
    let looked = world.rt.block_on(async move { Pool::preflight(&rt, files, settings).await });
    match looked {
        Some(Ok(found)) => {
            let level = if found.degraded { Level::Problem } else { Level::Warning };
            let warned = found.warnings.into_iter();
            let todo = "docs/operations.md has a part for each state of a device";
            let told = warned.map(|what| Finding::new(level, CHECK, what, todo));
            let todo = "nothing: a server does it by itself. Until then its copies do not count";
            let returning = found.returning.into_iter();
            told.chain(returning.map(|what| Finding::new(Level::Note, CHECK, what, todo)))
                .chain(too_much(overcommit::told(found.provisioned_bytes, found.capacity_bytes)))
                .collect()
        }
        // The devices may be meant for a pool that is yet to be made.
        Some(Err(e)) if e.kind == ErrorKind::Foreign && !has_pool(config) => {
            let found = "no device that is there holds anything of a pool";
            let todo = "forebay create makes one; if there was one, these are other devices";
            vec![Finding::new(Level::Note, CHECK, found, todo)]
        }
        Some(Err(e)) => refused(e.into()),
        // The runtime was killed.
        None => Vec::new(),
    }
}

/// Checks the space of a server that runs, as far as the server answers.
pub fn of_server(control: &Path) -> Option<Finding> {
    too_much(overcommit::of_pool(&ask(control, request::Status {}).ok()?.pool))
}

/// Volumes that are larger together than the pool.
fn too_much(told: Option<String>) -> Option<Finding> {
    let todo = "watch what is left (forebay status, forebay_pool_available_bytes) and add a device \
                before it is full: forebay device add";
    told.map(|found| Finding::new(Level::Warning, "space", found, todo))
}

fn has_pool(config: &ServeConfig) -> bool {
    let mut all = config.said.devices.iter();
    all.any(|one| crate::host::cache_file::newest_superblock(&one.path).is_some())
}
