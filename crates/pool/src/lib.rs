//! Devices, block groups, trees, transactions: the checksummed, mirrored, copy-on-write pool
