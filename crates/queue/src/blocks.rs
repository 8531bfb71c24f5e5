//! Reads that get every block that can be had.

use base::{BLOCK, BLOCK_U64, Buf, IoError};

use crate::{Class, Device};

/// The number of times that a block is asked for by itself before it counts as unreadable.
const TRIES: u32 = 2;

/// Blocks as they were read.
pub struct Blocks {
    /// All of them; an unreadable one is zeros.
    pub buf: Buf,
    /// The numbers of those that cannot be read, ascending, and why.
    pub unreadable: Vec<(usize, IoError)>,
}

impl Blocks {
    /// Why a block cannot be read, if it cannot.
    pub fn error(&self, block: usize) -> Option<IoError> {
        self.unreadable.iter().find(|(b, _)| *b == block).map(|(_, e)| *e)
    }

    /// A block, if it could be read.
    pub fn get(&self, block: usize) -> Result<&[u8], IoError> {
        match self.error(block) {
            Some(e) => Err(e),
            None => Ok(&self.buf[block * BLOCK..(block + 1) * BLOCK]),
        }
    }
}

impl Device {
    /// Reads `blocks` blocks from `offset` on. Where that fails each is read by itself, and tried
    /// again: an error that passes is none,
    /// and a bad block takes no other with it.
    pub async fn read_blocks(&self, class: Class, offset: u64, blocks: usize) -> Blocks {
        let (outcome, buf) = self.read_new(class, offset, blocks * BLOCK).await;
        let mut read = Blocks { buf, unreadable: Vec::new() };
        let Err(e) = outcome else { return read };
        if e.is_gone() {
            read.buf.fill(0);
            read.unreadable = (0..blocks).map(|block| (block, e)).collect();
            return read;
        }
        for block in 0..blocks {
            let at = block * BLOCK..(block + 1) * BLOCK;
            match self.read_block_again(class, offset + block as u64 * BLOCK_U64).await {
                Ok(good) => read.buf[at].copy_from_slice(&good),
                Err(e) => {
                    read.buf[at].fill(0);
                    read.unreadable.push((block, e));
                }
            }
        }
        read
    }

    /// Reads a block that could not be read, or was wrong.
    pub async fn read_block_again(&self, class: Class, offset: u64) -> Result<Buf, IoError> {
        let mut last = IoError::IO;
        for _ in 0..TRIES {
            match self.read_new(class, offset, BLOCK).await {
                (Ok(()), buf) => return Ok(buf),
                (Err(e), _) => last = e,
            }
        }
        Err(last)
    }
}
