//! The texts for users where the cache of a pool is missing, or lost.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pool::{CacheMode, Pool};
use uuid::Uuid;

use crate::error::CommandError;
use crate::units::{human_seconds, utc};

/// The number of volumes that are named in a list.
const LISTED: usize = 10;

/// Returns the error that ends the start, as the cache of the pool is missing.
pub fn missing(uuid: [u8; 16], why: String) -> CommandError {
    CommandError::Failed(format!(
        "the pool's cache {} {why}; it may hold what was flushed and is not in the pool yet. \
         Bring it back and name it with --cache PATH; if it is lost, \
         --forget-cache goes on from the pool's older image",
        Uuid::from_bytes(uuid)
    ))
}

/// Returns what the loss of a cache means, as far as that is known.
pub fn report(pool: &Pool, uuid: [u8; 16], max_lag: Duration) -> Vec<String> {
    let (volumes, cut) = (pool.volumes(), pool.cache_link().published().0);
    let mut lines = vec![format!("the pool's cache {} is given up", Uuid::from_bytes(uuid))];
    let image = match cut {
        0 => "the image is that of before the cache: nothing was published".to_owned(),
        n => {
            format!("the image is the cut {n} of the cache, whole; nothing newer than it is there")
        }
    };
    let age = match pool.cache_link().published_at() {
        None => "of when that is was not written down".to_owned(),
        Some(seconds) => {
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            #[allow(clippy::disallowed_methods, reason = "a report for people")]
            let ago = match SystemTime::now().duration_since(at) {
                Ok(ago) => format!("{} ago", human_seconds(ago.as_secs())),
                Err(_) => "which is ahead of the clock now: one of the two is wrong".to_owned(),
            };
            format!("it is of {} ({ago}): what completed before that is in it", utc(at))
        }
    };
    lines.push(format!("{image}; {age}"));
    let lag = human_seconds(max_lag.as_secs().max(1));
    let named = |mode: fn(CacheMode) -> bool| -> Vec<&str> {
        volumes.iter().filter(|v| mode(v.cache_mode)).map(|v| v.name.as_str()).collect()
    };
    let back = named(|m| m == CacheMode::WriteBack);
    let others = named(|m| m != CacheMode::WriteBack);
    if !back.is_empty() {
        lines.push(format!(
            "what was written to {} after it is lost, flushed or not; that is {lag} of writes at \
             most (max_lag, unless it was set otherwise), where the pool \
             could keep up until the cache was lost",
            list(&back)
        ));
    }
    if !others.is_empty() {
        lines.push(format!(
            "nothing that was flushed is lost of {}, which the cache did not write back for",
            list(&others)
        ));
    }
    lines
}

fn list(names: &[&str]) -> String {
    let mut text = names.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
    if names.len() > LISTED {
        text += &format!(" and {} more", names.len() - LISTED);
    }
    text
}
