//! Any answer of a server that has carried a request out.

use serde::Serialize;

use crate::Status;
use crate::cache::GcStatus;
use crate::device::DeviceSize;
use crate::explain::Explanation;
use crate::moves::{DeviceMoves, MovesAnswer};
use crate::scrub::ScrubStatus;
use crate::setting::{Config, Setting, SettingChange};
use crate::snapshot::{Snapshot, TakenSnapshots};
use crate::volume::{Client, FirstData, Volume, VolumeLimitChange};

/// Defines the enum of all answers, with a conversion from and to each.
macro_rules! answers {
    ($( $variant:ident($answer:ty), )+) => {
        /// Any answer. In JSON, what it has inside.
        #[derive(Clone, PartialEq, Debug, Serialize)]
        #[serde(untagged)]
        #[allow(missing_docs)]
        pub enum Answer {
            $( $variant(Box<$answer>), )+
        }

        $(
            impl From<$answer> for Answer {
                fn from(answer: $answer) -> Answer {
                    Answer::$variant(Box::new(answer))
                }
            }

            impl TryFrom<Answer> for $answer {
                type Error = Answer;

                fn try_from(answer: Answer) -> Result<$answer, Answer> {
                    match answer {
                        Answer::$variant(inner) => Ok(*inner),
                        other => Err(other),
                    }
                }
            }
        )+
    };
}

answers! {
    Done(()),
    Status(Status),
    Clients(Vec<Client>),
    Volumes(Vec<Volume>),
    FirstData(FirstData),
    LimitChange(VolumeLimitChange),
    Snapshots(Vec<Snapshot>),
    TakenSnapshots(TakenSnapshots),
    Gc(GcStatus),
    Scrub(ScrubStatus),
    DeviceMoves(DeviceMoves),
    Moves(MovesAnswer),
    DeviceSize(DeviceSize),
    Explanation(Explanation),
    Config(Config),
    Settings(Vec<Setting>),
    SettingChange(SettingChange),
}
