//! Which writes may be in flight on a rotating device beside reads: a pure rule.
//!
//! Such a disk serves what is nearest to its head. A stream of writes is that for as long as it
//! goes on, and a read behind it waits; and what is in flight already, the read waits for in any
//! case. So there are never more than [`BYTES`] of writes in flight, which keep the disk busy until
//! the next come; while reads are in flight, [`CREDIT`] writes may begin until one of the reads has
//! ended; and none may while a read is late, as the disk has passed it over for others. Clients
//! wait for reads; for most writes no client waits, as a cache has them.
//!
//! The background is none of this: [`crate::share`] says what it has, and while others wait it has
//! less, or it would keep them out.
//!
//! No write starves: the turn of writes that comes after so many reads ([`crate::elevator`]) they
//! have in any case.

/// Bytes of writes in flight.
const BYTES: usize = 2 << 20;
/// The number of writes that may begin until a read ends.
const CREDIT: u32 = 4;

/// The writes that may begin now.
#[derive(Clone, Copy)]
pub(crate) struct WriteAllowance {
    /// A write may begin, though reads are in flight.
    pub beside_reads: bool,
    /// A write may begin in the turn of writes.
    pub in_turn: bool,
}

impl WriteAllowance {
    /// Writes may do all that they want.
    pub const ALL: WriteAllowance = WriteAllowance { beside_reads: true, in_turn: true };
}

pub(crate) struct WriteGate {
    rotating: bool,
    /// Of writes in flight.
    bytes: usize,
    /// Reads in flight that are not of the background.
    reads: u32,
    credit: u32,
}

impl WriteGate {
    pub fn new(rotating: bool) -> WriteGate {
        WriteGate { rotating, bytes: 0, reads: 0, credit: CREDIT }
    }

    /// True if it matters whether a read that is in flight is late.
    pub fn minds_late_reads(&self) -> bool {
        self.rotating && self.reads > 0
    }

    /// Says what writes may do. `late`: a read in flight is late.
    pub fn may_write(&self, late: bool) -> WriteAllowance {
        let room = !self.rotating || self.bytes < BYTES;
        let turn = !self.minds_late_reads() || self.credit > 0 && !late;
        WriteAllowance { beside_reads: room && turn, in_turn: room }
    }

    /// A request begins that is not of the background.
    pub fn begin(&mut self, write: bool, bytes: usize) {
        if write {
            self.bytes += bytes;
            if self.reads > 0 {
                self.credit = self.credit.saturating_sub(1);
            }
        } else {
            self.reads += 1;
        }
    }

    /// A request has ended that is not of the background.
    pub fn end(&mut self, write: bool, bytes: usize) {
        if write {
            self.bytes -= bytes;
        } else {
            (self.reads, self.credit) = (self.reads - 1, CREDIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(gate: &WriteGate, late: bool) -> (bool, bool) {
        let may = gate.may_write(late);
        (may.beside_reads, may.in_turn)
    }

    #[test]
    fn writes_pause_while_a_read_is_late() {
        let mut gate = WriteGate::new(true);
        assert!(!gate.minds_late_reads(), "there is none");
        gate.begin(false, 4096);
        assert!(gate.minds_late_reads());
        assert_eq!(may(&gate, false), (true, true));
        assert_eq!(may(&gate, true), (false, true));
        assert_eq!(may(&WriteGate::new(false), true), (true, true));
    }

    #[test]
    fn writes_pause_until_a_read_ends() {
        let mut gate = WriteGate::new(true);
        gate.begin(false, 4096);
        gate.begin(false, 4096);
        for _ in 0..CREDIT {
            assert_eq!(may(&gate, false), (true, true));
            gate.begin(true, 4096);
            gate.end(true, 4096);
        }
        assert_eq!(may(&gate, false), (false, true), "the credit is spent");
        gate.end(false, 4096);
        assert_eq!(may(&gate, false), (true, true));
        gate.end(false, 4096);
        for _ in 0..3 * CREDIT {
            assert_eq!(may(&gate, false), (true, true), "there are no reads");
            gate.begin(true, 4096);
        }
    }

    #[test]
    fn few_bytes_of_writes_are_in_flight() {
        for rotating in [true, false] {
            let mut gate = WriteGate::new(rotating);
            gate.begin(true, BYTES - 1);
            assert_eq!(may(&gate, false), (true, true));
            gate.begin(true, 1);
            assert_eq!(may(&gate, false), (!rotating, !rotating));
            gate.end(true, 1);
            assert_eq!(may(&gate, false), (true, true));
        }
    }
}
