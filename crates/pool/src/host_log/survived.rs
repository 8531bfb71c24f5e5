//! Reading the host log that an earlier process has left.

use base::{HostMemoryId, SharedPlace};
use format::FormatError;
use format::host_log::{
    FRAME_HEAD, Frame, Header, SKIP, decode_frame, frame_bytes, left_of_lap, offset_of,
};

/// The records of an incarnation that ended without a clean stop, in their order.
#[derive(Default)]
pub struct SurvivingRecords {
    /// The frames that count.
    pub frames: Vec<Frame>,
    /// Why some or all of what was recorded does not count.
    pub lacking: Option<String>,
    /// The newest stamp that was durable: the devices have it, unless they were put back to an
    /// older state.
    pub durable: u64,
}

impl SurvivingRecords {
    /// The records that this process has left. `None`: no log of it is there.
    pub fn find(
        place: &SharedPlace,
        owner: [u8; 16],
        id: HostMemoryId,
    ) -> Option<SurvivingRecords> {
        let lacking = |why: String| {
            Some(SurvivingRecords { lacking: Some(why), ..SurvivingRecords::default() })
        };
        let memory = match place.find(owner, id) {
            Ok(memory) => memory?,
            Err(e) => return lacking(format!("it cannot be read: {e}")),
        };
        let header = memory.first_chunk().ok_or(FormatError::Length {
            what: "host log",
            want: Header::BYTES,
            got: memory.len(),
        });
        let header = match header.and_then(Header::decode) {
            Ok(header) => header,
            Err(e) => return lacking(e.to_string()),
        };
        if (header.owner, header.incarnation) != (owner, id.incarnation) {
            return None;
        }
        if header.void {
            return lacking("a flush had failed, or its memory had run out".into());
        }
        Some(read_frames(&memory, &header))
    }
}

fn read_frames(memory: &[u8], header: &Header) -> SurvivingRecords {
    let mut found = SurvivingRecords { durable: header.durable, ..SurvivingRecords::default() };
    let mut at = header.tail;
    while at < header.head {
        let left = left_of_lap(at);
        if left < FRAME_HEAD as u64 {
            at += left;
            continue;
        }
        let bytes = memory.get(offset_of(at)..).unwrap_or_default();
        match decode_frame(at, bytes) {
            Ok(frame) if frame.kind == SKIP => at += left,
            Ok(frame) => {
                at += frame_bytes(frame.payload.len()) as u64;
                found.frames.push(frame);
            }
            Err(e) => {
                found.lacking = Some(format!("the record at {at}: {e}"));
                break;
            }
        }
    }
    found
}
