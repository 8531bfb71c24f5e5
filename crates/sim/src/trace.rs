//! Operations in words, for the trace of a run.

use rt::Op;

/// An operation with its length, file and place.
pub(crate) fn describe(op: &Op) -> String {
    match op {
        Op::Read { file, offset, bufs } => {
            format!(
                "read {} of {} at {offset}",
                bufs.iter().map(|b| b.len()).sum::<usize>(),
                file.0
            )
        }
        Op::Write { file, offset, data, fua } => {
            let len = data.iter().map(|s| s.len()).sum::<usize>();
            format!("write {len} to {} at {offset}{}", file.0, if *fua { ", fua" } else { "" })
        }
        other => format!("{other:?}"),
    }
}
