//! The requests for snapshots, as the server carries them out.

use base::shell_word;
use model::snapshot::{Snapshot, SnapshotName, TakenSnapshots};
use model::volume::CacheMode;
use model::{Failure, FailureKind, request};

use super::Shard;

fn parsed(name: &str) -> Result<SnapshotName, Failure> {
    name.parse().map_err(Failure::invalid)
}

/// The name of a snapshot's export.
pub(super) fn full_name(of: &Snapshot) -> String {
    SnapshotName { volume: of.volume.clone(), name: of.name.clone() }.to_string()
}

impl Shard {
    /// All snapshots, or those of a volume. Those of one volume stand together.
    pub(super) fn list_snapshots(&self, volume: Option<&str>) -> Result<Vec<Snapshot>, Failure> {
        let mut all = self.volumes.snapshots(volume)?;
        // The sort keeps the order in which those of a volume were taken.
        all.sort_by(|a, b| a.volume.cmp(&b.volume));
        Ok(all)
    }

    /// Takes snapshots, all at one moment.
    pub(super) async fn take_snapshots(
        &self,
        r: request::SnapshotCreate,
    ) -> Result<TakenSnapshots, Failure> {
        let names = r.snapshots.iter().map(|name| parsed(name)).collect::<Result<Vec<_>, _>>()?;
        self.check_one_moment(&names)?;
        let begun = self.rt.now();
        let taken = self.volumes.take_snapshots(&names).await?;
        let took_ms = self.rt.now().since(begun).as_micros() as f64 / 1e3;
        for name in &names {
            tracing::info!(snapshot = %name, took_ms, "snapshot taken");
        }
        let snapshots = taken.into_iter().filter_map(|one| self.volumes.shown(one)).collect();
        Ok(TakenSnapshots { snapshots, took_ms })
    }

    /// Refuses snapshots that could not be of one moment: where some volumes write back and others
    /// do not, what the cache alone has comes to the pool later than what is written past it.
    fn check_one_moment(&self, names: &[SnapshotName]) -> Result<(), Failure> {
        if self.volumes.cache().is_none_or(|cache| cache.is_aside()) {
            return Ok(());
        }
        let volumes = || names.iter().filter_map(|n| self.volumes.pool().find_volume(&n.volume));
        let back = volumes().find(|v| v.cache_mode == CacheMode::WriteBack);
        let past = volumes().find(|v| v.cache_mode != CacheMode::WriteBack);
        let (Some(back), Some(past)) = (back, past) else { return Ok(()) };
        let text = format!(
            "the cache writes back what {:?} gets, and not what {:?} gets: snapshots of both are \
             not of one moment; take them one after the other, or type forebay cache mode {} \
             writeback first",
            back.name,
            past.name,
            shell_word(&past.name)
        );
        Err(Failure::new(FailureKind::Refused, text))
    }

    /// Gives a snapshot another name. Clients that have it open keep it.
    pub(super) async fn rename_snapshot(&self, r: request::SnapshotRename) -> Result<(), Failure> {
        let name = parsed(&r.snapshot)?;
        self.volumes.rename_snapshot(&name, &r.to).await?;
        let to = SnapshotName { volume: name.volume.clone(), name: r.to };
        self.nbd.note_renamed(&name.to_string(), &to.to_string());
        tracing::info!(snapshot = %name, to = %to, "snapshot renamed");
        Ok(())
    }

    /// Deletes a snapshot, unless clients have it open.
    pub(super) async fn delete_snapshot(&self, r: request::SnapshotDelete) -> Result<(), Failure> {
        let name = parsed(&r.snapshot)?;
        if !r.force {
            let loses = "would lose what is in it; end that first, or say --force";
            let shown = format!("the snapshot {name}");
            self.check_left(&name.to_string(), &shown, loses).await?;
        }
        self.volumes.delete_snapshot(&name).await?;
        tracing::info!(snapshot = %name, "snapshot deleted");
        Ok(())
    }

    /// Refuses to delete a volume that has snapshots, and says what deletes them.
    pub(super) fn check_without_snapshots(&self, volume: &str) -> Result<(), Failure> {
        // A volume that is not there is refused for that.
        let snapshots = self.volumes.snapshots(Some(volume)).unwrap_or_default();
        let (Some(first), Some(last)) = (snapshots.first(), snapshots.last()) else {
            return Ok(());
        };
        let (are, which) = match &snapshots[..] {
            [one] => ("a snapshot".to_owned(), one.name.clone()),
            all => (format!("{} snapshots", all.len()), format!("{}..{}", first.name, last.name)),
        };
        let which = format!("{volume}@{which}");
        let text = format!(
            "the volume {volume:?} has {are}, and stays: forebay snapshot delete {} deletes what \
             it has, and then the volume can be deleted",
            shell_word(&which)
        );
        Err(Failure::new(FailureKind::Refused, text))
    }
}
