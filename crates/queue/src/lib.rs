//! Per device: bounded in flight, plug and merge, flush, counters by class
