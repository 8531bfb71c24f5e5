//! Blocks that are written at random while something else goes on, and what each holds in the end.

use std::cell::Cell;
use std::rc::Rc;

use base::{Duration, Lba, VolumeId};
use pool::Pool;
use rt::Rt;

use crate::blocks::{block, only_byte};

/// Writes the first `blocks` blocks of a volume that is full of `1` at random as long as `goes_on`,
/// and commits now and then; returns what each holds then.
pub async fn change(
    (rt, pool): (Rt, Pool),
    (id, blocks): (VolumeId, u64),
    goes_on: Rc<Cell<bool>>,
) -> Vec<u8> {
    let mut model = vec![1; blocks as usize];
    let mut n = 0u64;
    while goes_on.get() {
        let (at, value) = (rt.random() % blocks, (2 + n % 200) as u8);
        pool.write(id, Lba(at), &block(value)).await.expect("write");
        model[at as usize] = value;
        n += 1;
        if n % 16 == 0 {
            pool.commit().await.expect("commit");
        }
        rt.sleep(Duration::from_micros(100)).await;
    }
    model
}

/// Asserts that each block of a volume holds what `model` says.
pub async fn holds_each(pool: &Pool, id: VolumeId, model: &[u8]) {
    for (at, &value) in model.iter().enumerate() {
        let data = pool.read(id, Lba(at as u64), 1).await.expect("read");
        assert_eq!(only_byte(&data), Some(value), "block {at}");
    }
}
