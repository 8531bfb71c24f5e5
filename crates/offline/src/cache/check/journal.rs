//! Whether the journal ends too early.
//!
//! Replay ends at the first entry that is missing, and cannot know whether it was ever there. But
//! an entry names the last one that was known durable when it was written; so if any entry in the
//! ring knows of one that replay did not find, that one was there, and clients were told so.

use base::{BLOCK, BLOCK_U64, EntrySeq};
use cache::raw::{
    EntryCopy, FoundEntries, Identity, Layout, Ring, read_copy, read_journal, replay_from,
};
use format::cache::journal::{MAX_ENTRY_BLOCKS, decode_entry, sequence_of};
use format::cache::superblock::CacheSuperblock;
use queue::Class;

use super::checker::{CacheChecker, GIVE_UP};
use super::plan::Fix;
use crate::report::{Phase, Subject};

const WHOLE: &str =
    "nothing is lost: the other copy counts, and the next checkpoint makes both needless";
/// Blocks of the ring that are looked at at once.
const STEP: u32 = MAX_ENTRY_BLOCKS;

impl CacheChecker<'_> {
    /// Reports entries that were there and are not any more.
    pub(super) async fn lost_entries(&mut self, sb: &CacheSuperblock, layout: &Layout) {
        let src = self.src.clone();
        let (of, place) = replay_from(sb);
        let known = self.image.cache_says.entry;
        let ring = layout.ring();
        let found = match read_journal(&src.device, &src.path, ring, of, place, known).await {
            Ok(found) => found,
            Err(e) => return self.log.error(Subject::Journal, "journal", e.to_string(), GIVE_UP),
        };
        self.bad_copies(&found, ring, &of).await;
        let end = found.end;
        let mut known = EntrySeq(0);
        let all = Ring::COPIES as u32 * ring.blocks;
        for at in (0..all).step_by(STEP as usize) {
            self.progress(Phase::Journal, at.into(), all.into());
            // An entry that begins in this step ends in the next at the latest.
            let blocks = (2 * STEP).min(all - at) as usize;
            let offset = ring.offset + u64::from(at) * BLOCK_U64;
            let (outcome, bytes) =
                src.device.read_new(Class::Foreground, offset, blocks * BLOCK).await;
            if let Err(e) = outcome {
                let what = format!(
                    "blocks {at} to {} of the ring cannot be looked at: {e}",
                    at as usize + blocks - 1
                );
                self.log.note(Subject::Journal, "journal", what);
                continue;
            }
            for i in 0..blocks.min(STEP as usize) {
                let bytes = &bytes[i * BLOCK..];
                let Some(sequence) = sequence_of(bytes).filter(|&s| s > end.sequence) else {
                    continue;
                };
                if let Ok(entry) = decode_entry(bytes, &of.uuid, of.incarnation, sequence) {
                    known = entry.durable.max(known);
                }
            }
        }
        if known >= end.sequence {
            let place = format!("entry {} of the journal", end.sequence);
            let what = format!(
                "it is missing or damaged, and entries up to {known} were durable: what was \
                 flushed since is lost"
            );
            self.log.error(Subject::Journal, place, what, GIVE_UP);
        }
    }

    /// Reports copies of durable entries that are bad. Of others a crash may have cut one short.
    async fn bad_copies(&mut self, found: &FoundEntries, ring: Ring, of: &Identity) {
        let src = self.src.clone();
        for (entry, &position) in found.entries.iter().zip(&found.positions) {
            if entry.sequence > found.durable {
                return;
            }
            let places = ring.places(position);
            for (copy, offset) in places.into_iter().enumerate() {
                let why = match read_copy(&src.device, offset, of, entry.sequence).await {
                    EntryCopy::Entry(_) => continue,
                    EntryCopy::Other => "it is damaged".to_owned(),
                    EntryCopy::Unreadable(e) => e.to_string(),
                };
                let place = format!("copy {copy} of entry {} of the journal", entry.sequence);
                self.log.copy(Subject::Journal, &place, &src.path, why, WHOLE);
                // The entry was read, so the other copy is good.
                self.plan.add(Fix::Entry {
                    bad: offset,
                    good: places[1 - copy],
                    blocks: entry.blocks(),
                    of: *of,
                    sequence: entry.sequence,
                });
            }
        }
    }
}
