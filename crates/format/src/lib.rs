//! Every on-disk structure as pure bytes: no I/O, no unsafe
