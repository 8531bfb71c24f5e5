//! What a block holds, told by its data alone: for where a node of the checksums cannot be read.

use base::{Crc, Lba, PoolAddr, Result, VolumeId};
use queue::Class;

use crate::pool::Pool;
use crate::space::Pin;

impl Pool {
    /// Whether a block of a volume has this checksum, by what its copies hold; `None` where none of
    /// them that counts can be read. No checksum of the pool is asked for, nothing is healed, and
    /// no error is counted. Errors: a node of the mapping cannot be read.
    pub async fn holds(&self, volume: VolumeId, lba: Lba, crc: Crc) -> Result<Option<bool>> {
        let place = self.resident(Class::Foreground, |st| {
            let found = st.forest.extents(volume, (lba, lba.plus(1)), 1)?;
            Ok(found.first().map(|e| (PoolAddr(e.addr.0 + lba.0 - e.lba.0), st.space.pin())))
        });
        match place.await? {
            Some((addr, pin)) => Ok(self.copies_hold(addr, crc, &pin).await),
            None => Ok(Some(false)),
        }
    }

    async fn copies_hold(&self, addr: PoolAddr, crc: Crc, pin: &Pin) -> Option<bool> {
        let (copies, count) = {
            let mut st = self.state_mut();
            let count = st.copies_for(addr, pin);
            (st.copies_to_read(addr, base::BLOCK, pin), count)
        };
        let mut holds = None;
        for (row, offset) in copies {
            let Some(disk) = self.disk(row) else { continue };
            let read = disk.read_copy(Class::Foreground, offset, &[crc]).await;
            if read.bad.is_empty() {
                return Some(true);
            }
            // A copy that is behind may have what was there before.
            if read.error.is_none() && count.contains(&(row, offset)) {
                holds = Some(false);
            }
        }
        holds
    }
}
