//! The offline checks of a run: between its boots, and at rest.

use base::StorageError;
use offline::CheckOptions;
use offline::cache::check as cache_check;
use offline::pool::check::{Report, check};
use offline::pool::dump::{PoolStructure, dump};

use super::Run;
use crate::cached::Attachment;
use crate::{rest, verdict};

impl Run {
    /// Checks the devices as they are now, without faults.
    pub(super) fn offline_check(&mut self, data: bool) -> Option<Report> {
        self.devices.calm();
        self.devices.only_flaky_reads();
        let rt = self.runtime();
        let (r, files) = (rt.clone(), self.devices.alive());
        let data = data || self.env.one_in(4);
        let options = CheckOptions { data, ..CheckOptions::default() };
        // A cache that nothing has struck must be as whole as the pool.
        let attached = self.attachment.get() == Attachment::Attached;
        let struck = self.env.cache_struck.get() || !self.env.spoilt.borrow().is_empty();
        let sound = attached && !struck && !self.env.beyond();
        let cache = self.devices.cache().filter(|_| sound);
        let checked = rt.block_on(async move {
            let report = check(&r, files, &options, &mut |_| ()).await?;
            let cache = match cache {
                Some(file) => {
                    Some(cache_check::check(&r, &file, &report.image, &options, &mut |_| ()).await)
                }
                None => None,
            };
            Ok((report, cache))
        });
        rt.kill();
        self.env.count("offline checks", 1);
        let report = checked.map(|outcome| {
            outcome.map(|(report, cache)| {
                self.judge_cache(cache);
                report
            })
        });
        match report {
            None => self.env.fail("the check did not end"),
            Some(Err(e)) => {
                self.judge_refusal("offline check", &e);
                None
            }
            Some(Ok(report)) => {
                verdict::judge(&self.env, &report);
                Some(report)
            }
        }
    }

    /// Checks the devices after all was restored ([`rest`]): nothing at all is bad.
    pub(super) fn check_at_rest(&mut self) -> Option<Report> {
        let report = self.offline_check(true)?;
        if self.env.beyond() {
            return Some(report);
        }
        let rt = self.runtime();
        let (r, files) = (rt.clone(), self.devices.alive());
        let dumped = rt.block_on(async move {
            let mut items = Vec::new();
            dump(&r, files, &PoolStructure::Groups, &mut |item| items.push(item))
                .await
                .map(|()| items)
        });
        rt.kill();
        match dumped {
            Some(Ok(items)) => rest::judge(&self.env, &report, &items),
            other => self.env.fail(format!("at rest, no dump of the groups: {other:?}")),
        }
        Some(report)
    }

    /// Blocks that are bad and in the pool too are what a crash in the middle of an open may leave.
    fn judge_cache(&self, report: Option<cache_check::CacheReport>) {
        let Some(report) = report else { return };
        self.env.count("cache: offline checks", 1);
        if report.errors > 0 {
            let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
            self.env
                .fail(format!("the offline check of the cache found:\n{}", problems.join("\n")));
        }
    }

    fn judge_refusal(&self, what: &str, e: &StorageError) {
        if self.devices.may_refuse(e) {
            self.env.count("offline checks that met a device without a superblock", 1);
        } else if !self.env.beyond() {
            self.env.fail(format!("{what}: {:?}: {e}", e.kind));
        }
    }
}
