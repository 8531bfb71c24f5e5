//! Chunks that moves fill: their writes reach the device in ascending order, as a zoned device
//! would need them. What else is written to that device meanwhile goes elsewhere.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use rt::FileId;
use sim::Ascending;

use crate::env::Env;

/// The order of writes to the devices of the pool.
#[derive(Default)]
pub(crate) struct Filled {
    orders: BTreeMap<FileId, Ascending>,
    /// What was wrong first.
    wrong: Option<String>,
}

impl Filled {
    /// Follows the writes to a device from now on.
    pub fn follow(env: &Rc<Env>, file: FileId) {
        let followed = Rc::downgrade(env);
        env.world.watch_writes(file, move |offset, data| {
            if let Some(env) = followed.upgrade() {
                let bytes: usize = data.iter().map(|s| s.len()).sum();
                note(&env, file, (offset, offset + bytes as u64));
            }
        });
    }

    /// A boot begins: no chunk is being filled, and fills are numbered anew.
    pub fn begin_boot(env: &Env) {
        Filled::check(env);
        let orders = std::mem::take(&mut env.filled.borrow_mut().orders);
        env.count(
            "writes to chunks that moves fill",
            orders.values().map(Ascending::followed).sum(),
        );
    }

    /// The run fails if a write was out of order.
    pub fn check(env: &Env) {
        if let Some(wrong) = &env.filled.borrow().wrong {
            env.fail(wrong.clone());
        }
    }
}

fn note(env: &Env, file: FileId, write: (u64, u64)) {
    let Some(pool) = env.pool.borrow().clone() else { return };
    let fills = pool.fills().into_iter().filter(|f| f.file == file).map(|f| (f.place, f.number));
    let filled: &RefCell<Filled> = &env.filled;
    let filled = &mut *filled.borrow_mut();
    if let Err(text) = filled.orders.entry(file).or_default().note(fills, write) {
        filled.wrong.get_or_insert(text);
    }
}
