//! The answer to "what is slow now?": requests that have not ended yet.

use base::VolumeId;

use crate::ledger::{Ledger, PendingSlow};
use crate::story::Moment;
use crate::words::{RequestReport, in_words, length};
use model::wait::RequestClass;

/// Requests under way that are told whole.
const WHOLE: usize = 5;

/// Requests that are under way and slow already.
#[derive(Clone, Debug, Default)]
pub struct PendingAnswer {
    /// The number of requests.
    pub count: u64,
    /// There may be more: the oldest few thousand were looked at.
    pub more: bool,
    /// The time that the oldest has been under way, in nanoseconds.
    pub longest_ns: u64,
    /// The oldest, the longest first, with what their time was made of up to now, in words.
    pub oldest: Vec<RequestReport>,
    /// All this in plain words; empty if there are none.
    pub text: String,
}

impl PendingAnswer {
    /// Requests for which `asked` is true that have taken more than `ns` up to now. If all are of
    /// one kind, the text says so.
    pub(crate) fn of(
        ledger: &Ledger,
        moment: Moment,
        ns: u64,
        kind: Option<RequestClass>,
        asked: impl Fn(Option<VolumeId>, RequestClass) -> bool,
    ) -> PendingAnswer {
        let asked = |(volume, of): &_| kind.is_none_or(|kind| kind == *of) && asked(*volume, *of);
        let PendingSlow { count, more, oldest } = ledger.pending(moment, ns, WHOLE, asked);
        let longest_ns = oldest.first().map_or(0, |longest| longest.ns);
        let oldest = oldest.into_iter().map(|slow| in_words(ledger, slow)).collect();
        let mut of = PendingAnswer { count, more, longest_ns, oldest, text: String::new() };
        of.text = text(&of, kind, ns);
        of
    }
}

fn text(of: &PendingAnswer, kind: Option<RequestClass>, ns: u64) -> String {
    let Some(RequestReport { slow: longest, parts }) = of.oldest.first() else {
        return String::new();
    };
    let (took, one) = (length(longest.ns), longest.kind.singular());
    let most = parts.first().map_or("", |(_, text)| text.as_str());
    if of.count == 1 && !of.more {
        return format!("under way now: 1 {one} for {took}; it waits mostly for {most}");
    }
    let at_least = if of.more { "at least " } else { "" };
    let words = kind.map_or("requests", RequestClass::plural);
    format!(
        "under way now: {at_least}{} {words} for more than {}; the longest, a {one}, for {took}: \
         it waits mostly for {most}",
        of.count,
        length(ns)
    )
}

#[cfg(test)]
mod tests {
    use base::{Duration, Instant};

    use super::*;
    use crate::explain::{Answer, Question, explain};
    use crate::{Reason, Story, WaitCause};

    fn at(ms: u64) -> Moment {
        Moment::at(Instant(ms * 1_000_000))
    }

    fn ask(ledger: &Ledger, volume: Option<u32>, kind: Option<RequestClass>, ms: u64) -> Answer {
        let (volume, since) = (volume.map(VolumeId), Instant(0));
        explain(ledger, &Question { volume, kind, since, slower_than_ns: 5_000_000 }, at(ms))
    }

    fn begin(ledger: &Ledger, kind: RequestClass, volume: u32, ms: u64) -> Story {
        let story = ledger.begin(kind, 4096, 512, at(ms));
        story.set_volume(VolumeId(volume));
        story
    }

    #[test]
    fn what_hangs_is_told_before_it_ends() {
        let ledger = Ledger::default();
        let of = |ms| ask(&ledger, None, None, ms).under_way;
        assert_eq!((of(0).count, of(0).text.as_str()), (0, ""));
        let what = WaitCause { place: ledger.place("cache device c"), ..Reason::Transfer.into() };
        let write = begin(&ledger, RequestClass::Write, 1, 0);
        let lock = write.enter(Reason::RangeLock.into(), at(0));
        write.leave(lock, at(4));
        let job = ledger.job("journal", at(0));
        let transfer = job.enter(what, at(4));
        let wait = write.enter_job(Reason::Journal, &job, at(4));
        assert_eq!(of(5).count, 0, "it is not slow yet");
        let told = of(36_000);
        assert_eq!(
            told.text,
            "under way now: 1 write for 36.0 s; it waits mostly for the cache's journal, which \
             waited for a transfer of cache device c"
        );
        let [RequestReport { slow, parts }] = &told.oldest[..] else { panic!("{told:?}") };
        assert_eq!(parts.iter().map(|(part, _)| part.ns).sum::<u64>(), slow.ns);
        assert_eq!((slow.volume, slow.range), (Some(VolumeId(1)), (4096, 512)));
        // To be looked at changes nothing of what is told in the end.
        job.leave(transfer, at(37_000));
        write.leave(wait, at(37_000));
        ledger.end(&write, at(37_000));
        let answer = ask(&ledger, None, None, 37_001);
        assert_eq!((answer.under_way.count, answer.kinds[0].max_ns), (0, 37_000_000_000));
        let parts: Vec<u64> = answer.slowest[0].parts.iter().map(|(part, _)| part.ns).collect();
        assert_eq!(parts, [36_996_000_000, 4_000_000]);
    }

    #[test]
    fn it_is_asked_by_volume_and_class() {
        let ledger = Ledger::default();
        let stories = [
            begin(&ledger, RequestClass::Read, 1, 0),
            begin(&ledger, RequestClass::Write, 2, 10),
            begin(&ledger, RequestClass::Read, 2, 20),
        ];
        let of = |volume, kind| {
            let of = ask(&ledger, volume, kind, 40).under_way;
            (of.count, of.longest_ns / 1_000_000)
        };
        assert_eq!(of(None, None), (3, 40));
        assert_eq!((of(Some(2), None), of(Some(2), Some(RequestClass::Read))), ((2, 30), (1, 20)));
        assert_eq!((of(Some(3), None), of(None, Some(RequestClass::Flush))), ((0, 0), (0, 0)));
        let text = ask(&ledger, None, None, 40).under_way.text;
        let said = "under way now: 3 requests for more than 5.000 ms; the longest, a read, for \
                    40.0 ms: it waits mostly for a turn on the engine's thread";
        assert_eq!(text, said);
        stories.iter().for_each(|story| ledger.end(story, at(40)));
        assert_eq!(of(None, None), (0, 0));
    }

    #[test]
    fn a_verdict_begins_with_what_hangs_where_that_is_the_worst() {
        let ledger = Ledger::default();
        let quick = begin(&ledger, RequestClass::Write, 1, 0);
        ledger.end(&quick, at(100));
        let hangs = begin(&ledger, RequestClass::Write, 1, 50);
        let read = begin(&ledger, RequestClass::Read, 1, 50);
        ledger.end(&read, at(51));
        let verdicts = |ms| {
            let kinds = ask(&ledger, None, None, ms).kinds;
            kinds.into_iter().map(|of| (of.kind, of.verdict)).collect::<Vec<_>>()
        };
        assert!(verdicts(150).iter().all(|(_, verdict)| !verdict.contains("under way")));
        let [(RequestClass::Read, read), (RequestClass::Write, write)] = &verdicts(3_050)[..]
        else {
            panic!()
        };
        assert!(write.starts_with("under way now: 1 write for 3.0 s; it "), "{write}");
        assert!(write.contains("thread. 1 write took 100.0 ms."), "{write}");
        assert!(!read.contains("under way"), "{read}");
        ledger.end(&hangs, at(3_050));
    }

    #[test]
    fn of_very_many_the_oldest_are_told() {
        let ledger = Ledger::default();
        let stories: Vec<Story> =
            (0..5_000).map(|ms| begin(&ledger, RequestClass::Read, 1, ms)).collect();
        let of = ask(&ledger, None, None, 60_000).under_way;
        assert!(of.more && of.count < 5_000, "{}", of.count);
        assert_eq!((of.oldest.len(), of.longest_ns), (WHOLE, 60_000_000_000));
        assert!(of.text.starts_with("under way now: at least 4096 requests for"), "{}", of.text);
        stories[1_000..].iter().for_each(|story| ledger.end(story, at(60_000)));
        assert!(!ask(&ledger, None, None, 60_000).under_way.more);
        // One that waited before the thread could look comes late, and is older.
        let late = Moment { late: Duration::from_secs(9), ..at(60_000) };
        ledger.begin(RequestClass::Write, 0, 1, late.before());
        let of = ask(&ledger, None, Some(RequestClass::Write), 60_000).under_way;
        assert_eq!(of.longest_ns, 9_000_000_000);
    }
}
