//! Lists of runs of pool blocks, merged as they grow.

use base::PoolAddr;

/// `len` blocks from `addr` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub addr: PoolAddr,
    pub len: u32,
}

/// Appends a run, extending the last one where they touch and stay inside one group of
/// `group_blocks`.
pub(crate) fn push_run(list: &mut Vec<Run>, run: Run, group_blocks: u32) {
    let blocks = u64::from(group_blocks);
    if let Some(last) = list.last_mut() {
        let touches = last.addr.0 + u64::from(last.len) == run.addr.0;
        if touches && last.addr.0 / blocks == run.addr.0 / blocks {
            last.len += run.len;
            return;
        }
    }
    list.push(run);
}
