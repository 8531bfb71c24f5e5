//! Blocks that count as lost, and are not lost any more.

use std::rc::Rc;

use base::{BlockRange, ErrorKind};
use queue::Class;

use crate::core::Core;
use crate::io::read::Reader;
use crate::transfer::load::NodeLoader;

/// Takes blocks that are not lost any more from the list of those that are.
pub(crate) struct LostBlockPruner {
    core: Core,
    loader: Rc<NodeLoader>,
    reader: Rc<Reader>,
}

impl LostBlockPruner {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        loader: &Rc<NodeLoader>,
        reader: &Rc<Reader>,
    ) -> Rc<LostBlockPruner> {
        Rc::new(LostBlockPruner {
            core: core.clone(),
            loader: loader.clone(),
            reader: reader.clone(),
        })
    }

    /// Takes blocks from the list of those that are lost which can be read.
    pub(crate) async fn read_lost_again(&self) {
        let extents = self.core.state().scrub.extents().to_vec();
        for e in extents {
            let mut keep = Vec::new();
            for i in 0..u64::from(e.blocks) {
                let read = self.reader.read_for(Class::Scrub, e.volume, e.lba.plus(i), 1).await;
                keep.push(read.is_err());
            }
            let mut st = self.core.state_mut();
            if st.scrub.retain(&e, &keep) {
                st.note_in_superblock();
            }
        }
    }

    /// Takes lost blocks from the list that are not lost any more: they were written again, or
    /// discarded.
    pub(crate) async fn drop_found_again(&self) {
        let extents = self.core.state().scrub.extents().to_vec();
        for e in extents {
            let range = BlockRange::of(e.lba, e.blocks.into());
            let found = self
                .loader
                .resident(Class::Scrub, |st| st.forest.extents(e.volume, range, usize::MAX))
                .await;
            // A volume that is gone has lost nothing. Of one whose tree cannot be read all blocks
            // stay in the list.
            let keep: Vec<bool> = match &found {
                Ok(now) => (0..u64::from(e.blocks))
                    .map(|i| {
                        let (lba, addr) = (e.lba.0 + i, e.addr.0 + i);
                        now.iter().any(|m| {
                            m.lba.0 <= lba && lba < m.end() && m.addr.0 + (lba - m.lba.0) == addr
                        })
                    })
                    .collect(),
                Err(err) => {
                    let gone = err.kind == ErrorKind::NotFound;
                    vec![!gone; e.blocks as usize]
                }
            };
            let mut st = self.core.state_mut();
            if st.scrub.retain(&e, &keep) {
                st.note_in_superblock();
            }
        }
    }
}
