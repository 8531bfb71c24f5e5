//! Room for what a pass keeps ([`kept`](super::kept)): in the journal's ring, and for nodes.
//!
//! A checkpoint may wait for the pass to make room for nodes, and the journal's ring for the
//! checkpoint. So the pass does not wait where nodes are short: it fails, and the next one goes on
//! where it stopped.
//!
//! The nodes are of the margin ([`crate::space::node_room`]), and a step of the pass reserves them
//! until it has entered its keys: many such steps are under way at once, each of which would find
//! the same nodes free otherwise. Where it is others of these steps that have reserved what is
//! left, it waits for them. They wait for room in the ring and for devices, and for no step that
//! has reserved nothing.

use base::{ErrorKind, Result, StorageError};

use crate::store::ring_room::{JournalRoom, nodes_for};
use crate::writeback::kept::Keeper;
use crate::writeback::margin::MarginNodes;

/// Room for records, and for the nodes that they change.
pub(super) struct KeptRoom {
    /// For the records.
    pub ring: JournalRoom,
    _nodes: MarginNodes,
}

impl Keeper {
    /// Room for records and for the nodes that they change.
    pub(super) async fn room_to_keep(
        &self,
        records: usize,
        checksums: usize,
        why: &StorageError,
    ) -> Result<KeptRoom> {
        let nodes = self.margin_nodes(nodes_for(records as u64), why).await?;
        let ring = self.room.room_in_pass(records, checksums).await?;
        Ok(KeptRoom { ring, _nodes: nodes })
    }

    /// Reserves `nodes` nodes of the margin. Waits while others have reserved what is left.
    async fn margin_nodes(&self, nodes: u64, why: &StorageError) -> Result<MarginNodes> {
        let margin = self.core.writeback().margin();
        loop {
            let (reserved, freed) = (margin.reserved(), margin.freed());
            if self.core.levels().margin_has(reserved + nodes) {
                return Ok(margin.reserve(nodes));
            }
            if reserved == 0 {
                let what =
                    format!("{why}; and the cache has no room for more nodes of its index now");
                return Err(StorageError::new(ErrorKind::Io, what));
            }
            freed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testkit::{Lab, settings};

    #[test]
    fn steps_of_a_pass_never_reserve_more_than_the_margin_together() {
        Lab::new().within_an_hour(settings(), |cache, _| async move {
            let why = StorageError::new(ErrorKind::Unreachable, "lost");
            let all = (1..)
                .take_while(|&nodes| cache.core().levels().margin_has(nodes))
                .last()
                .expect("some");
            let first = cache
                .flows()
                .passes
                .carrier
                .keeper
                .margin_nodes(all - 1, &why)
                .await
                .expect("they are there");
            let small = cache
                .flows()
                .passes
                .carrier
                .keeper
                .margin_nodes(1, &why)
                .await
                .expect("the last one");
            let (c, w) = (cache.clone(), why.clone());
            let second = cache
                .core()
                .rt()
                .spawn(async move { c.flows().passes.carrier.keeper.margin_nodes(2, &w).await });
            cache.core().rt().sleep(Duration::from_secs(1)).await;
            let reserved = || cache.core().writeback().margin().reserved();
            assert_eq!(reserved(), all, "the second one waits");
            drop(small);
            cache.core().rt().sleep(Duration::from_secs(1)).await;
            assert_eq!(reserved(), all - 1, "the second one waits still");
            drop(first);
            let second = second.await.expect("it ends").expect("there is room by now");
            assert_eq!(reserved(), 2);
            drop(second);
            // No other step has them: it would wait for ever.
            let e = cache
                .flows()
                .passes
                .carrier
                .keeper
                .margin_nodes(all + 1, &why)
                .await
                .err()
                .expect("too many");
            assert!(e.context.ends_with("no room for more nodes of its index now"), "{e}");
            assert_eq!(reserved(), 0);
        });
    }
}
