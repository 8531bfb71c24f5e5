//! Volumes as exports.

use base::{BLOCK, Slice, SliceList};
use pool::{ErrorKind, PoolError};
use volume::{Volume, Volumes};

use crate::codec::Errno;
use crate::export::{Export, ExportInfo, Exports, Extent, ZeroOpts};

/// The longest request.
const MAX_REQUEST: u32 = 32 << 20;

fn errno(e: PoolError) -> Errno {
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

async fn durable(v: &Volume, fua: bool) -> Result<(), Errno> {
    if fua { v.flush().await.map_err(errno) } else { Ok(()) }
}

impl Export for Volume {
    fn info(&self) -> ExportInfo {
        let (name, sector) = match Volume::info(self) {
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
        // A deleted volume has no size: its requests are let through, to be answered with ESHUTDOWN.
        match self.size() {
            0 => u64::MAX,
            size => size,
        }
    }

    async fn read(&self, offset: u64, len: u32) -> Result<SliceList, Errno> {
        Volume::read(self, offset, u64::from(len)).await.map_err(errno)
    }

    async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), Errno> {
        Volume::write(self, offset, data).await.map_err(errno)?;
        durable(self, fua).await
    }

    async fn flush(&self) -> Result<(), Errno> {
        Volume::flush(self).await.map_err(errno)
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), Errno> {
        self.discard(offset, len).await.map_err(errno)?;
        durable(self, fua).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, opts: ZeroOpts) -> Result<(), Errno> {
        // Giving up blocks is fast, writing zeros is as slow as any write.
        if opts.fast && opts.no_hole {
            return Err(Errno::NotSup);
        }
        Volume::write_zeroes(self, offset, len, opts.no_hole).await.map_err(errno)?;
        durable(self, opts.fua).await
    }

    async fn cache(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.prefetch(offset, len).await.map_err(errno)
    }

    async fn block_status(&self, offset: u64, len: u64, max_extents: usize) -> Result<Vec<Extent>, Errno> {
        let parts = self.extents(offset, len, max_extents).await.map_err(errno)?;
        Ok(parts.into_iter().map(|p| Extent { len: p.len, hole: !p.allocated, zero: !p.allocated }).collect())
    }
}

impl Exports for Volumes {
    type Export = Volume;

    fn open(&self, name: &str) -> Option<Volume> {
        if name.is_empty() {
            // The default export is the only volume, if there is just one.
            return match &Volumes::list(self)[..] {
                [only] => Volumes::open(self, &only.name),
                _ => None,
            };
        }
        Volumes::open(self, name)
    }

    fn list(&self) -> Vec<(String, String)> {
        Volumes::list(self).into_iter().map(|v| (v.name, String::new())).collect()
    }
}
