//! The seam simulated: virtual time, disks with faults, a wire
