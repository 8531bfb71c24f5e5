//! Requests to blocks: sub-block read-modify-write, discard, zeroes, block status
