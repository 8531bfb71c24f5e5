//! The NBD protocol as a pure codec, and a server of it over the seam
