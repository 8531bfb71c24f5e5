//! One copy-on-write B+tree over resident nodes
