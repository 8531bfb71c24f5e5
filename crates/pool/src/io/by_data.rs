//! What blocks hold, told by their data alone: for where a node of the checksums cannot be read.

use base::{Crc, Lba, PoolAddr, Result, VolumeId};
use queue::Class;

use crate::pool::Pool;
use crate::space::Pin;

impl Pool {
    /// Which blocks of a volume, from `lba` on, have these checksums, by what their copies hold.
    /// `None` where that cannot be read. No checksum of the pool is asked for, nothing is healed,
    /// and no error is counted.
    pub async fn holds(&self, volume: VolumeId, lba: Lba, crcs: &[Crc]) -> Vec<Option<bool>> {
        let mut out = Vec::with_capacity(crcs.len());
        for (i, crc) in crcs.iter().enumerate() {
            let at = lba.plus(i as u64);
            out.push(match self.place_of(volume, at).await {
                Ok(Some((addr, pin))) => self.copies_hold(addr, *crc, &pin).await,
                Ok(None) => Some(false),
                Err(_) => None,
            });
        }
        out
    }

    async fn place_of(&self, volume: VolumeId, lba: Lba) -> Result<Option<(PoolAddr, Pin)>> {
        self.resident(Class::Foreground, |st| {
            let found = st.forest.extents(volume, (lba, lba.plus(1)), 1)?;
            Ok(found.first().map(|e| (PoolAddr(e.addr.0 + lba.0 - e.lba.0), st.space.pin())))
        })
        .await
    }

    async fn copies_hold(&self, addr: PoolAddr, crc: Crc, pin: &Pin) -> Option<bool> {
        let copies = self.state_mut().copies_to_read(addr, base::BLOCK, pin);
        let mut holds = None;
        for (row, offset) in copies {
            let Some(disk) = self.disk(row) else { continue };
            let read = disk.read_copy(Class::Foreground, offset, &[crc]).await;
            if read.bad.is_empty() {
                return Some(true);
            }
            if read.error.is_none() {
                holds = Some(false);
            }
        }
        holds
    }
}
