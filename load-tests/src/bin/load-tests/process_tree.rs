//! A process with its descendants. PostgreSQL has a process per connection, and RabbitMQ has helpers.

/// Returns the ids of a process and of all its descendants.
pub(crate) fn ids(root: u32) -> Vec<u32> {
    let mut family = vec![root];
    let mut next = 0;
    while let Some(&pid) = family.get(next) {
        next += 1;
        // Children may come and go meanwhile: a missing list is an empty one.
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            family.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    family
}
