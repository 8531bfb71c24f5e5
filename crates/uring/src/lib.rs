//! The seam on io_uring
