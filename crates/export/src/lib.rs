//! Volumes as NBD exports: this crate joins `volume` and `nbd`, which know nothing of each other.
//!
//! The command serves clients through these exports, and so does torture.

mod access;
mod failures;
#[cfg(test)]
#[path = "lib_tests.rs"]
mod tests;

use std::rc::Rc;

use base::{BLOCK, ErrorKind, Slice, SliceList, StorageError, VolumeId};
use model::snapshot::SnapshotName;
use nbd::{BlockStatus, Errno, Export, ExportInfo, Exports, Peer, ZeroOpts};
use volume::{Ticket, Volume, Volumes};

pub use access::{Access, Grant, Rule};
use failures::Failures;

/// The longest request.
const MAX_REQUEST: u32 = 32 << 20;

/// The volumes of a pool, as the exports of a server.
pub struct VolumeExports {
    volumes: Volumes,
    access: Access,
    failures: Rc<Failures>,
}

impl VolumeExports {
    /// All volumes, for clients as these rules have it.
    pub fn new(volumes: Volumes, access: Access) -> VolumeExports {
        VolumeExports { volumes, access, failures: Rc::default() }
    }

    /// Returns the right of a client to a volume, or to a snapshot. Who may open a volume may read
    /// its snapshots.
    fn grant(&self, name: &str, peer: Option<&Peer>) -> Grant {
        let grant = self.access.grant(peer, name);
        if self.volumes.pool().find_volume(name).is_some() {
            return grant;
        }
        let snapshot: Option<SnapshotName> = name.parse().ok();
        let of_volume = snapshot.map(|s| self.access.grant(peer, &s.volume));
        grant.max(of_volume.unwrap_or(Grant::Nothing)).min(Grant::Read)
    }

    /// The names of all snapshots, but for those that are the names of volumes.
    fn snapshots(&self) -> impl Iterator<Item = String> {
        let all = self.volumes.snapshots(None).unwrap_or_default().into_iter();
        let names = all.map(|s| SnapshotName { volume: s.volume, name: s.name }.to_string());
        names.filter(|name| self.volumes.pool().find_volume(name).is_none())
    }
}

/// A volume, as an open export.
#[derive(Clone)]
pub struct VolumeExport {
    volume: Volume,
    /// This client may only read it.
    read_only: bool,
    /// Of a request that was admitted.
    ticket: Option<Rc<Ticket>>,
    failures: Rc<Failures>,
}

impl VolumeExport {
    fn new(volume: Volume, grant: Grant, failures: &Rc<Failures>) -> VolumeExport {
        let read_only = grant < Grant::Write;
        VolumeExport { volume, read_only, ticket: None, failures: failures.clone() }
    }

    /// Returns the error number that the client gets.
    fn errno(&self, e: StorageError) -> Errno {
        match e.kind {
            ErrorKind::NoSpace => Errno::NoSpc,
            ErrorKind::Invalid => Errno::Inval,
            ErrorKind::NotFound => Errno::Shutdown,
            _ => {
                self.failures.note(&e, self.volume.now());
                Errno::Io
            }
        }
    }

    /// Fails if the volume is read-only now. It may not have been when the client came.
    fn writable(&self) -> Result<(), Errno> {
        if self.read_only || self.volume.is_read_only() { Err(Errno::Perm) } else { Ok(()) }
    }

    /// The end of a change. Those that wait to be durable do so together, however many they are.
    async fn durable(&self, fua: bool) -> Result<(), Errno> {
        if !fua {
            return Ok(());
        }
        self.rest();
        self.flush().await
    }
}

impl Export for VolumeExport {
    fn info(&self) -> ExportInfo {
        let (name, sector, read_only) = match self.volume.info() {
            Some(i) => (i.name, i.sector_bytes, i.read_only),
            None => (String::new(), 512, false),
        };
        ExportInfo {
            name,
            description: String::new(),
            min_block: sector,
            preferred_block: BLOCK as u32,
            max_block: MAX_REQUEST,
            read_only: self.read_only || read_only,
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

    fn volume(&self) -> VolumeId {
        VolumeId(self.volume.number())
    }

    async fn admit(&self, bytes: u64, fills: bool) -> VolumeExport {
        let ticket = match fills {
            true => self.volume.admit_fill(bytes).await,
            false => self.volume.admit(bytes).await,
        };
        VolumeExport { ticket: Some(Rc::new(ticket)), ..self.clone() }
    }

    fn rest(&self) {
        if let Some(ticket) = &self.ticket {
            ticket.end();
        }
    }

    async fn go_on(&self) {
        if let Some(ticket) = &self.ticket {
            ticket.again().await;
        }
    }

    async fn read(&self, offset: u64, len: u32) -> Result<SliceList, Errno> {
        self.volume.read(offset, u64::from(len)).await.map_err(|e| self.errno(e))
    }

    async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), Errno> {
        self.writable()?;
        self.volume.write(offset, data).await.map_err(|e| self.errno(e))?;
        self.durable(fua).await
    }

    async fn flush(&self) -> Result<(), Errno> {
        self.volume.flush().await.map_err(|e| self.errno(e))
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), Errno> {
        self.writable()?;
        self.volume.discard(offset, len).await.map_err(|e| self.errno(e))?;
        self.durable(fua).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, opts: ZeroOpts) -> Result<(), Errno> {
        self.writable()?;
        // Giving up blocks is fast, writing zeros is as slow as any write.
        if opts.fast && opts.no_hole {
            return Err(Errno::NotSup);
        }
        self.volume
            .write_zeroes(offset, len, opts.no_hole, self.ticket.as_deref())
            .await
            .map_err(|e| self.errno(e))?;
        self.durable(opts.fua).await
    }

    async fn cache(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.volume.prefetch(offset, len).await.map_err(|e| self.errno(e))
    }

    async fn block_status(
        &self,
        offset: u64,
        len: u64,
        max_extents: usize,
    ) -> Result<Vec<BlockStatus>, Errno> {
        let parts =
            self.volume.extents(offset, len, max_extents).await.map_err(|e| self.errno(e))?;
        Ok(parts
            .into_iter()
            .map(|p| BlockStatus { len: p.len, hole: !p.allocated, zero: !p.allocated })
            .collect())
    }
}

impl Exports for VolumeExports {
    type Export = VolumeExport;

    fn open(&self, name: &str, peer: Option<&Peer>) -> Option<VolumeExport> {
        let grant = |name: &str| self.access.grant(peer, name);
        if !name.is_empty() {
            let grant = Some(self.grant(name, peer)).filter(|grant| *grant > Grant::Nothing)?;
            return self
                .volumes
                .open(name)
                .map(|volume| VolumeExport::new(volume, grant, &self.failures));
        }
        // The default export is the only volume that the client may open, if there is just one.
        let all = self.volumes.list().into_iter().map(|v| (grant(&v.name), v.name));
        let mut open = all.filter(|(grant, _)| *grant > Grant::Nothing);
        match (open.next(), open.next()) {
            (Some((grant, name)), None) => self
                .volumes
                .open(&name)
                .map(|volume| VolumeExport::new(volume, grant, &self.failures)),
            _ => None,
        }
    }

    fn list(&self, peer: Option<&Peer>) -> Vec<(String, String)> {
        let open = |name: &String| self.grant(name, peer) > Grant::Nothing;
        let volumes = self.volumes.list().into_iter().map(|v| v.name);
        let names = volumes.chain(self.snapshots()).filter(open);
        names.map(|name| (name, String::new())).collect()
    }
}
