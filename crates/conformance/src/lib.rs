//! One suite that every backend of the seam passes
