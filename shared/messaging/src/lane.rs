use uuid::Uuid;

/// The number of lanes. It must not change: an event keeps the lane that it was written with, so with another number an
/// aggregate's pending events would be in two lanes, and two relays could publish them in the wrong order.
pub const LANES: i16 = 16;

/// The lane of an aggregate: FNV-1a over the bytes of its id.
///
/// Computed here and stored with the event, because PostgreSQL's hash functions may change between versions. A hash,
/// because the low bits of an id that a client made need not be random.
pub fn lane(aggregate_id: Uuid) -> i16 {
    let hash = aggregate_id.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The high half is mixed best. 0..16 fits an i16.
    i16::try_from((hash >> 32) % LANES.unsigned_abs() as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_ordered_ids_spread_evenly_over_the_lanes() {
        let mut counts = [0_u32; LANES as usize];
        for _ in 0..16_000 {
            counts[usize::try_from(lane(Uuid::now_v7())).unwrap()] += 1;
        }
        for (lane, count) in counts.iter().enumerate() {
            assert!(
                (700..1300).contains(count),
                "lane {lane} got {count} of 16,000, about 1,000 were expected"
            );
        }
    }

    #[test]
    fn lane_of_an_id_never_changes() {
        // Pending events in existing outboxes were written with these lanes.
        assert_eq!(lane(Uuid::from_u128(0)), 9);
        assert_eq!(lane(Uuid::from_u128(0x0190_5a3e_7b1c_7000_8000_0000_0000_0001)), 0);
    }
}
