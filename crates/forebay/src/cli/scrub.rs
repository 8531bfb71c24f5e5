//! `forebay scrub`: every copy of every block is read and verified, and what is bad is healed.

use std::thread::sleep;
use std::time::Duration;

use base::counted;
use clap::{Args, Subcommand};
use model::request;
use model::scrub::{CacheScrubPart, LostBlocks, PoolScrub, ScrubFound, ScrubState, ScrubStatus};

use crate::cli::options::{ClientOptions, positive_size};
use crate::control::client::ask_patiently;
use crate::error::{DAMAGED, LOST, PARTIAL, Result};
use crate::output::{is_json, print, print_json};
use crate::terminal::interrupted::InterruptNotice;
use crate::terminal::progress::{Progress, Step};
use crate::terminal::text::paragraph;
use crate::terminal::{Cell, Column, Look, Table, Tone, summary};
use crate::units::{human_bytes, human_seconds, unix_time};

/// The interval between two looks of `--wait`.
const LOOK: Duration = Duration::from_millis(500);

/// Verify every copy of everything in the pool, and heal what is bad
#[derive(Args, Debug)]
pub struct ScrubCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Start a scrub; it runs in the background and goes on after a restart
    Start {
        /// Read this device only
        #[arg(long)]
        device: Option<String>,
        /// Bytes a second to read of each copy at most, such as 100M
        #[arg(long, value_parser = positive_size)]
        rate: Option<u64>,
        /// Show how far it is until it has ended; exit with 3 if something is lost, with 4 if
        /// damaged copies could not be written again, with 5 if not everything was verified
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Have the scrub rest until it is resumed
    Pause {
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Let a paused scrub go on
    Resume {
        /// Bytes a second to read of each copy at most, such as 100M
        #[arg(long, value_parser = positive_size)]
        rate: Option<u64>,
        /// Show how far it is until it has ended; exit with 3 if something is lost, with 4 if
        /// damaged copies could not be written again, with 5 if not everything was verified
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// End the scrub; what it has healed stays healed
    Cancel {
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Show how far the scrub is, or how the last one ended
    Status {
        #[command(flatten)]
        client: ClientOptions,
    },
}

impl ScrubCommand {
    pub fn run(self) -> Result<u8> {
        let (client, mut status, wait) = match self.action {
            Action::Start { device, rate, wait, client } => {
                let status = client.ask(request::ScrubStart { device, rate })?;
                (client, status, wait)
            }
            Action::Pause { client } => {
                let status = client.ask(request::ScrubPause {})?;
                (client, status, false)
            }
            Action::Resume { rate, wait, client } => {
                let status = client.ask(request::ScrubResume { rate })?;
                (client, status, wait)
            }
            Action::Cancel { client } => {
                let status = client.ask(request::ScrubCancel {})?;
                (client, status, false)
            }
            Action::Status { client } => {
                let status = client.ask(request::GetScrub {})?;
                show(&status)?;
                return Ok(0);
            }
        };
        if wait {
            let _told = InterruptNotice::without_us(
                "forebay scrub status shows how far it is, and forebay scrub cancel ends it",
            );
            let mut shown = Progress::new(is_json());
            while runs(&status) {
                shown.show(&step(&status));
                #[allow(clippy::disallowed_methods, reason = "the command is no engine")]
                sleep(LOOK);
                status = ask_patiently(&client.socket(), request::GetScrub {})?;
            }
        }
        show(&status)?;
        Ok(if wait { exit_status(&status) } else { 0 })
    }
}

fn show(status: &ScrubStatus) -> Result<()> {
    match is_json() {
        true => print_json(status),
        false => print(&text(status, &Look::of_stdout())),
    }
}

/// True if a scrub runs, in the pool or in the cache.
fn runs(s: &ScrubStatus) -> bool {
    let runs_in_cache = s.cache.is_some_and(|part| part.state == ScrubState::Running);
    s.pool.state == ScrubState::Running || runs_in_cache
}

/// True if blocks are lost, or parts of the pool could not be verified.
fn has_lost(s: &ScrubStatus) -> bool {
    let of_cache = s.cache.map_or(0, |part| part.lost);
    let pool = &s.pool;
    let lost = pool.lost + of_cache > 0 || !pool.lost_blocks.is_empty();
    lost || pool.more_lost || pool.incomplete
}

/// The exit status of `--wait`.
fn exit_status(s: &ScrubStatus) -> u8 {
    let pool = &s.pool;
    // A scrub of one device has no part of the cache's: that is of one before.
    let cache = s.cache.filter(|_| pool.device.is_none());
    let of_cache =
        cache.is_none_or(|part| matches!(part.state, ScrubState::Done | ScrubState::Never));
    let whole = !pool.away && pool.state == ScrubState::Done && of_cache;
    match whole {
        _ if has_lost(s) => LOST,
        _ if pool.bad > pool.healed => DAMAGED,
        true => 0,
        // The scrub was paused or cancelled, or something was not there.
        false => PARTIAL,
    }
}

/// The progress of a scrub. The cache's part that outlasts the pool's is shown by itself.
fn step(s: &ScrubStatus) -> Step {
    let pool = &s.pool;
    if let Some(part) = s.cache.filter(|_| pool.state != ScrubState::Running && runs(s)) {
        return Step {
            what: "scrub of the cache".into(),
            done: part.verified_bytes,
            total: part.all_bytes,
            ..Step::default()
        };
    }
    Step {
        what: "scrub".into(),
        done: pool.verified_bytes,
        total: pool.all_bytes,
        rate: Some(pool.rate).filter(|rate| *rate > 0),
        left_s: pool.left_s,
        note: errors(pool).trim_start_matches([',', ';', ' ']).to_owned(),
        ..Step::default()
    }
}

/// The share of the bytes that is verified: `done` of `all`.
fn share(done: u64, all: u64) -> String {
    // If there is nothing to verify, all of it is verified.
    let percent = if all == 0 { 100.0 } else { (done as f64 * 100.0 / all as f64).min(100.0) };
    format!("{percent:.1}%, {} of {}", human_bytes(done), human_bytes(all))
}

/// The state of the cache's part, and what it has found; `None`: there was none.
fn of_cache(part: &CacheScrubPart) -> Option<String> {
    if part.state == ScrubState::Never {
        return None;
    }
    let mut text = format!("{}, {}", part.state, share(part.verified_bytes, part.all_bytes));
    if part.dropped > 0 {
        text += &format!("; {} bad and dropped, the pool has them", part.dropped);
    }
    if part.lost > 0 {
        text += &format!("; {} LOST, forebay cache status names them", part.lost);
    }
    Some(text)
}

/// The progress of the pool's part, in a line.
fn progress(s: &PoolScrub) -> String {
    let mut text = share(s.verified_bytes, s.all_bytes);
    if s.rate > 0 {
        text += &format!(", {}/s", human_bytes(s.rate));
    }
    if let Some(left) = s.left_s {
        text += &format!(", {} left", human_seconds(left));
    }
    text + &errors(s)
}

/// The bad copies and the lost blocks, behind a comma or a semicolon.
fn errors(s: &PoolScrub) -> String {
    let (bad, healed, lost, passed) = (s.bad, s.healed, s.lost, s.passed_over);
    if bad + lost == 0 {
        return ", no errors".into();
    }
    let mut text = format!(
        "; {}, {healed} healed",
        counted(bad, "bad copy of a block", "bad copies of blocks")
    );
    if lost > passed {
        text += &format!(", {} LOST", counted(lost - passed, "block", "blocks"));
    }
    match passed {
        0 => {}
        1 => text += ", 1 part of the pool PASSED OVER",
        _ => text += &format!(", {passed} parts of the pool PASSED OVER"),
    }
    text
}

/// The line of `forebay status` about a scrub and the cache's part; `None`: there is nothing to
/// say.
pub fn line(s: &PoolScrub, part: Option<&CacheScrubPart>) -> Option<String> {
    let is_under_way =
        |part: &&CacheScrubPart| matches!(part.state, ScrubState::Running | ScrubState::Paused);
    let cache = part.filter(is_under_way).and_then(of_cache);
    let cache = cache.map(|text| format!("the cache: {text}"));
    let all: Vec<String> = of_pool(s).into_iter().chain(cache).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn of_pool(s: &PoolScrub) -> Option<String> {
    let known = !s.lost_blocks.is_empty() || s.more_lost;
    let lost = match (known, s.incomplete) {
        (false, true) => "; NOT\u{a0}ALL\u{a0}WAS\u{a0}VERIFIED, see forebay scrub status",
        (false, false) => "",
        (true, _) => "; BLOCKS\u{a0}ARE\u{a0}LOST, see forebay scrub status",
    };
    match s.state {
        ScrubState::Never if lost.is_empty() => None,
        ScrubState::Running => Some(format!("{}{lost}", progress(s))),
        ScrubState::Paused => Some(format!("paused at {}{lost}", progress(s))),
        state => {
            let away = if s.away { "; a device of the pool was not there" } else { "" };
            Some(format!("{state} {}{}{away}{lost}", at(s.ended_at), errors(s)))
        }
    }
}

fn at(seconds: u32) -> String {
    unix_time(u64::from(seconds))
}

fn text(s: &ScrubStatus, look: &Look) -> String {
    let pool = &s.pool;
    let mut rows = vec![("scrub", pool.state.to_string())];
    if let Some(device) = &pool.device {
        rows.push(("device", format!("{device} alone")));
    }
    if pool.state != ScrubState::Never {
        rows.push(("started", at(pool.started_at)));
        if pool.ended_at > 0 {
            rows.push(("ended", at(pool.ended_at)));
        }
        rows.push(("verified", progress(pool)));
    }
    if pool.away {
        let said = "what a device holds that was out of use: this scrub does not count as \
                    complete; start one when all devices are back";
        rows.push(("not verified", said.to_owned()));
    }
    rows.extend(s.cache.as_ref().and_then(of_cache).map(|text| ("cache", text)));
    if pool.completed_at > 0 {
        rows.push(("last complete", at(pool.completed_at)));
    }
    if let Some(rate) = pool.rate_limit.filter(|rate| *rate > 0) {
        rows.push(("limit", format!("{}/s of each copy", human_bytes(rate))));
    }
    let mut out = summary(rows, look);
    out += &bad_copies(&pool.found, look);
    out += &found_earlier(pool, look);
    out += &passed_over(pool, look);
    out += &lost_blocks(&pool.lost_blocks, look);
    out + &more_lost(pool, look)
}

fn bad_copies(found: &[ScrubFound], look: &Look) -> String {
    if found.is_empty() {
        return String::new();
    }
    let device = Column::shortened("DEVICE", 20);
    let mut table =
        Table::new(&[device, Column::new("WHAT"), Column::new("BAD"), Column::new("HEALED")]);
    for f in found {
        let (bad, healed) = (f.found.bad.to_string(), f.found.healed.to_string());
        table.add([f.device.as_str().into(), f.kind.word().into(), bad.into(), healed.into()]);
    }
    format!("\n{}", table.text(look))
}

/// Says that it is not known of all bad copies where they were, as the server has started since.
fn found_earlier(s: &PoolScrub, look: &Look) -> String {
    let known: u64 = s.found.iter().map(|f| f.found.bad).sum();
    let more = s.bad.saturating_sub(known);
    if more == 0 {
        return String::new();
    }
    let said = format!(
        "{} found before the server started: on which device is not known any more.",
        counted(more, "bad copy was", "bad copies were")
    );
    format!("\n{}", paragraph(Tone::Plain, "", &said, look))
}

/// Says what it means that parts were passed over, and what to type.
fn passed_over(s: &PoolScrub, look: &Look) -> String {
    if !s.incomplete {
        return String::new();
    }
    let which = match s.passed_over {
        0 => "an earlier scrub passed over parts of the pool",
        _ => "it passed over parts of the pool",
    };
    let said = format!(
        "{which}: what says where their blocks are has no good copy, so these blocks are not \
         verified. The log names the parts. Stop the server, and forebay check says what is \
         damaged."
    );
    format!("\n{}", paragraph(Tone::Bad, "", &said, look))
}

fn lost_blocks(lost: &[LostBlocks], look: &Look) -> String {
    if lost.is_empty() {
        return String::new();
    }
    let volume = Column::shortened("VOLUME", 20);
    let mut table = Table::new(&[volume, Column::new("OFFSET"), Column::new("BYTES")]);
    for l in lost {
        let volume = Cell::new(Tone::Bad, &l.volume);
        table.add([volume, l.offset.to_string().into(), l.length.to_string().into()]);
    }
    let said = "no copy of these is good; reads of them fail until they are written again:";
    format!("\n{said}\n{}", table.text(look))
}

/// Says what it means that more is lost than the list names, and what to type.
fn more_lost(s: &PoolScrub, look: &Look) -> String {
    if !s.more_lost {
        return String::new();
    }
    let said = match s.lost_blocks.as_slice() {
        [] => "More blocks are lost than were listed here: forebay scrub start --wait finds which.",
        _ => {
            "And more, for which the list has no room: run a scrub when these are mended (forebay \
             scrub start --wait)."
        }
    };
    format!("\n{}", paragraph(Tone::Bad, "", said, look))
}

#[cfg(test)]
mod tests {
    use model::scrub::{BlockKind, Found};

    use super::*;

    const LOOK: Look = Look { columns: 120, colour: false };

    fn whole(pool: &PoolScrub) -> ScrubStatus {
        ScrubStatus { pool: pool.clone(), cache: None }
    }

    fn of_state(state: ScrubState) -> PoolScrub {
        PoolScrub { state, ..PoolScrub::default() }
    }

    #[test]
    fn parts_that_were_passed_over_are_no_success() {
        let mut s = PoolScrub {
            state: ScrubState::Done,
            ended_at: 86_400,
            bad: 4,
            lost: 3,
            passed_over: 2,
            incomplete: true,
            ..PoolScrub::default()
        };
        assert!(has_lost(&whole(&s)));
        assert_eq!(
            errors(&s),
            "; 4 bad copies of blocks, 0 healed, 1 block LOST, 2 parts of the pool PASSED OVER"
        );
        assert!(line(&s, None).is_some_and(|l| l.contains("see forebay scrub status")));
        let shown = text(&whole(&s), &LOOK);
        assert!(
            shown.contains("it passed over parts") && shown.contains("forebay check"),
            "{shown}"
        );
        (s.bad, s.lost, s.passed_over) = (0, 0, 0);
        let earlier = whole(&s);
        assert!(has_lost(&earlier));
        assert!(text(&earlier, &LOOK).contains("an earlier scrub passed over"));
        s.incomplete = false;
        assert!(!has_lost(&whole(&s)) && !text(&whole(&s), &LOOK).contains("passed over"));
    }

    #[test]
    fn a_scrub_without_a_device_says_so() {
        let away = PoolScrub { ended_at: 9, away: true, ..of_state(ScrubState::Done) };
        let mut s = whole(&away);
        assert_eq!((has_lost(&s), exit_status(&s)), (false, PARTIAL));
        assert!(text(&s, &LOOK).contains("does not count as complete"));
        assert!(line(&s.pool, None).is_some_and(|l| l.contains("was not there")));
        s.pool.lost = 1;
        assert_eq!(exit_status(&s), LOST);
        s.pool.away = false;
        s.pool.lost = 0;
        assert_eq!(exit_status(&s), 0);
        let part = |state| Some(CacheScrubPart { state, ..CacheScrubPart::default() });
        let cancelled = part(ScrubState::Cancelled);
        for (state, cache) in [
            (ScrubState::Paused, None),
            (ScrubState::Cancelled, None),
            (ScrubState::Done, cancelled),
        ] {
            let mut s = ScrubStatus { cache, ..s.clone() };
            s.pool.state = state;
            assert_eq!(exit_status(&s), PARTIAL, "{s:?}");
        }
        let mut alone = ScrubStatus { pool: of_state(ScrubState::Done), cache: cancelled };
        alone.pool.device = Some("/a".into());
        assert_eq!(exit_status(&alone), 0);
        let bad = PoolScrub { bad: 3, healed: 2, ..of_state(ScrubState::Done) };
        assert_eq!(exit_status(&whole(&bad)), DAMAGED);
        assert!(!text(&s, &LOOK).contains("complete"));
    }

    #[test]
    fn what_was_found_before_a_start_says_so() {
        let mut s = whole(&PoolScrub { bad: 3, healed: 3, ..of_state(ScrubState::Done) });
        let said = "3 bad copies were found before the server started: on which device is not";
        assert!(text(&s, &LOOK).contains(said), "{}", text(&s, &LOOK));
        let found = ScrubFound {
            device: "/a".into(),
            kind: BlockKind::Data,
            found: Found { bad: 2, healed: 2 },
        };
        s.pool.found = vec![found.clone()];
        assert!(text(&s, &LOOK).contains("1 bad copy was found before the server started"));
        s.pool.found.push(found);
        assert!(!text(&s, &LOOK).contains("before the server started"));
    }

    #[test]
    fn a_list_that_is_cut_says_so() {
        let lost = LostBlocks { volume: "v".into(), offset: 8192, length: 4096 };
        let mut s = whole(&of_state(ScrubState::Done));
        (s.pool.more_lost, s.pool.lost_blocks) = (true, vec![lost]);
        assert!(text(&s, &LOOK).contains("And more, for which the list has no room"));
        s.pool.lost_blocks.clear();
        assert!(has_lost(&s) && line(&s.pool, None).is_some_and(|l| l.contains("LOST")));
        assert!(text(&s, &LOOK).contains("forebay scrub start --wait"));
        s.pool.more_lost = false;
        assert!(!has_lost(&s) && !text(&s, &LOOK).contains("More"));
    }

    #[test]
    fn the_part_of_the_cache_is_shown_and_waited_for() {
        let part = |state| CacheScrubPart {
            state,
            verified_bytes: 1 << 30,
            all_bytes: 2 << 30,
            dropped: 3,
            lost: 1,
        };
        let (running, done) = (part(ScrubState::Running), part(ScrubState::Done));
        let pool = PoolScrub { ended_at: 9, ..of_state(ScrubState::Done) };
        let mut s = ScrubStatus { pool, cache: Some(running) };
        assert!(runs(&s) && has_lost(&s));
        assert_eq!((step(&s).what, step(&s).done), ("scrub of the cache".into(), 1 << 30));
        let shown = text(&s, &LOOK);
        for part in ["running, 50.0%, 1 GiB of 2 GiB", "3 bad and dropped", "1 LOST"] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        let told = line(&s.pool, Some(&running));
        assert!(told.is_some_and(|l| l.contains("the cache: running")));
        assert!(line(&s.pool, Some(&done)).is_some_and(|l| !l.contains("the cache")));
        let empty = CacheScrubPart { state: ScrubState::Done, ..CacheScrubPart::default() };
        s.cache = Some(empty);
        assert!(text(&s, &LOOK).contains("done, 100.0%, 0 B of 0 B"));
        s.cache = Some(part(ScrubState::Paused));
        assert!(!runs(&s));
        s.cache = None;
        assert!(!runs(&s) && !has_lost(&s) && !text(&s, &LOOK).contains("cache"));
    }

    #[test]
    fn it_reads_as_a_person_would_expect() {
        let running = PoolScrub {
            state: ScrubState::Running,
            device: Some("/a".into()),
            started_at: 86_400,
            verified_bytes: 1 << 30,
            all_bytes: 4 << 30,
            rate: 256 << 20,
            left_s: Some(12),
            rate_limit: Some(1 << 20),
            bad: 3,
            healed: 2,
            lost: 1,
            completed_at: 60,
            found: vec![ScrubFound {
                device: "/a".into(),
                kind: BlockKind::Data,
                found: Found { bad: 3, healed: 2 },
            }],
            lost_blocks: vec![LostBlocks { volume: "v".into(), offset: 8192, length: 4096 }],
            ..PoolScrub::default()
        };
        let shown = text(&whole(&running), &LOOK);
        for part in [
            "running",
            "/a alone",
            "1970-01-02",
            "25.0%, 1 GiB of 4 GiB, 256 MiB/s",
            "12 s left",
            "3 bad copies of blocks, 2 healed, 1 block LOST",
            "1 MiB/s of each copy",
            "data",
            "v       8192    4096",
            "no copy of these is good",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        let step = step(&whole(&running));
        assert_eq!((step.done, step.total, step.left_s), (1 << 30, 4 << 30, Some(12)));
        assert_eq!(step.note, "3 bad copies of blocks, 2 healed, 1 block LOST");
        assert!(line(&running, None).is_some_and(|l| l.contains("LOST")));
        let done = PoolScrub { ended_at: 86_400, ..of_state(ScrubState::Done) };
        assert!(
            line(&done, None)
                .is_some_and(|l| l.contains("done 1970-01-02") && l.contains("no errors"))
        );
        assert_eq!(line(&of_state(ScrubState::Never), None), None);
        assert!(text(&ScrubStatus::default(), &LOOK).contains("scrub"));
    }
}
