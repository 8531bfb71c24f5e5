//! Volumes as NBD exports: what joins `volume` and `nbd`, which know nothing of each other.
//!
//! The command serves clients by it, and so does torture.

#[cfg(test)]
mod tests;

use std::rc::Rc;

use base::{BLOCK, ErrorKind, Slice, SliceList, StorageError};
use nbd::{BlockStatus, Errno, Export, ExportInfo, Exports, ZeroOpts};
use volume::{Ticket, Volume, Volumes};

/// The longest request.
const MAX_REQUEST: u32 = 32 << 20;

fn errno(e: StorageError) -> Errno {
    match e.kind {
        ErrorKind::NoSpace => Errno::NoSpc,
        ErrorKind::Invalid => Errno::Inval,
        ErrorKind::NotFound => Errno::Shutdown,
        _ => {
            tracing::error!("a request failed: {e}");
            Errno::Io
        }
    }
}

/// The volumes of a pool, as the exports of a server.
pub struct VolumeExports(pub Volumes);

/// A volume, as an open export.
#[derive(Clone)]
pub struct VolumeExport {
    volume: Volume,
    /// Of a request that was admitted.
    ticket: Option<Rc<Ticket>>,
}

impl VolumeExport {
    fn new(volume: Volume) -> VolumeExport {
        VolumeExport { volume, ticket: None }
    }

    /// The end of a change. Those that wait to be durable do so together, however many they are.
    async fn durable(&self, fua: bool) -> Result<(), Errno> {
        if !fua {
            return Ok(());
        }
        if let Some(ticket) = &self.ticket {
            ticket.end();
        }
        self.flush().await
    }
}

impl Export for VolumeExport {
    fn info(&self) -> ExportInfo {
        let (name, sector) = match self.volume.info() {
            Some(i) => (i.name, i.sector_bytes),
            None => (String::new(), 512),
        };
        ExportInfo {
            name,
            description: String::new(),
            min_block: sector,
            preferred_block: BLOCK as u32,
            max_block: MAX_REQUEST,
            read_only: false,
        }
    }

    fn size_bytes(&self) -> u64 {
        // A deleted volume has no size: its requests are let through, to be answered with
        // ESHUTDOWN.
        match self.volume.size() {
            0 => u64::MAX,
            size => size,
        }
    }

    fn line(&self) -> u64 {
        self.volume.number().into()
    }

    async fn admit(&self, bytes: u64) -> VolumeExport {
        let ticket = self.volume.admit(bytes).await;
        VolumeExport { volume: self.volume.clone(), ticket: Some(Rc::new(ticket)) }
    }

    async fn read(&self, offset: u64, len: u32) -> Result<SliceList, Errno> {
        self.volume.read(offset, u64::from(len)).await.map_err(errno)
    }

    async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), Errno> {
        self.volume.write(offset, data).await.map_err(errno)?;
        self.durable(fua).await
    }

    async fn flush(&self) -> Result<(), Errno> {
        self.volume.flush().await.map_err(errno)
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), Errno> {
        self.volume.discard(offset, len).await.map_err(errno)?;
        self.durable(fua).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, opts: ZeroOpts) -> Result<(), Errno> {
        // Giving up blocks is fast, writing zeros is as slow as any write.
        if opts.fast && opts.no_hole {
            return Err(Errno::NotSup);
        }
        self.volume.write_zeroes(offset, len, opts.no_hole).await.map_err(errno)?;
        self.durable(opts.fua).await
    }

    async fn cache(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.volume.prefetch(offset, len).await.map_err(errno)
    }

    async fn block_status(
        &self,
        offset: u64,
        len: u64,
        max_extents: usize,
    ) -> Result<Vec<BlockStatus>, Errno> {
        let parts = self.volume.extents(offset, len, max_extents).await.map_err(errno)?;
        Ok(parts
            .into_iter()
            .map(|p| BlockStatus { len: p.len, hole: !p.allocated, zero: !p.allocated })
            .collect())
    }
}

impl Exports for VolumeExports {
    type Export = VolumeExport;

    fn open(&self, name: &str) -> Option<VolumeExport> {
        if !name.is_empty() {
            return self.0.open(name).map(VolumeExport::new);
        }
        // The default export is the only volume, if there is just one.
        match &self.0.list()[..] {
            [only] => self.0.open(&only.name).map(VolumeExport::new),
            _ => None,
        }
    }

    fn list(&self) -> Vec<(String, String)> {
        self.0.list().into_iter().map(|v| (v.name, String::new())).collect()
    }
}
