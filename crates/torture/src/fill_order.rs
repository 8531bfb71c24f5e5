//! Follows the writes to the devices of a run's pool: where a move has written a chunk out of order
//! ([`crate::filled`]), the run fails.

use std::rc::Rc;

use base::ByteRange;
use rt::FileId;

use crate::env::Env;

/// Follows the writes to a device from now on.
pub(crate) fn follow(env: &Rc<Env>, file: FileId) {
    let followed = Rc::downgrade(env);
    env.world.watch_writes(file, move |offset, data| {
        let Some(env) = followed.upgrade() else { return };
        let Some(pool) = env.pool.borrow().clone() else { return };
        let bytes: usize = data.iter().map(|s| s.len()).sum();
        env.filled.borrow_mut().note(&pool, file, ByteRange::new(offset, offset + bytes as u64));
    });
}
