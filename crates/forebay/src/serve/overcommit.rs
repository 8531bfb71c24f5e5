//! Volumes that are larger together than their pool. That is what thin volumes are for, and it ends
//! with errors for clients: so it is told wherever somebody can still do something.

use model::status::PoolStatus;

use crate::units::human_bytes;

/// Returns the warning about volumes of so many bytes together in a pool that holds so many;
/// `None`: all of them find room there.
pub fn told(provisioned_bytes: u64, capacity_bytes: u64) -> Option<String> {
    (capacity_bytes > 0 && provisioned_bytes > capacity_bytes).then(|| {
        format!(
            "the volumes have {} together, and the pool holds {}: once that is full, writes fail",
            human_bytes(provisioned_bytes),
            human_bytes(capacity_bytes)
        )
    })
}

/// The same by the status of a pool.
pub fn of_pool(pool: &PoolStatus) -> Option<String> {
    told(pool.provisioned_bytes, pool.capacity_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_pool_holds_is_told() {
        const GIB: u64 = 1 << 30;
        assert_eq!(told(16 * GIB, 16 * GIB), None);
        assert_eq!(told(1, 0), None, "nothing is known of the pool");
        let pool = PoolStatus {
            provisioned_bytes: 500 << 40,
            capacity_bytes: 16 * GIB,
            ..PoolStatus::default()
        };
        assert_eq!(
            of_pool(&pool).unwrap_or_default(),
            "the volumes have 500 TiB together, and the pool holds 16 GiB: once that is full, \
             writes fail"
        );
        assert_eq!(of_pool(&PoolStatus::default()), None);
    }
}
