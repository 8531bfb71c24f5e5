//! Offline check.
