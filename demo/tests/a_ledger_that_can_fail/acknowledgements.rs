use std::time::SystemTime;

use anyhow::Result;
use demo::ledger::{self, Ledger};
use uuid::Uuid;

#[test]
fn the_ledger_keeps_each_acknowledgement_and_forgives_a_half_written_last_line() -> Result<()> {
    let path = std::env::temp_dir().join(format!("ledger-{}.jsonl", Uuid::new_v4()));
    assert!(ledger::read(&path)?.is_empty(), "no file is no promise");
    let ids = [Uuid::new_v4(), Uuid::new_v4()];
    let log = Ledger::open(&path)?;
    log.note(ids[0], SystemTime::now());
    log.note(ids[1], SystemTime::now());
    log.note(ids[1], SystemTime::now());
    assert_eq!(log.noted(), 3);
    drop(log);

    let again = Ledger::open(&path)?;
    assert_eq!(again.noted(), 0, "it counts since it was opened");
    assert_eq!(again.acknowledged()?.len(), 2, "and remembers everything, once");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, format!("{text}{{\"id\":\"0190"))?;
    assert_eq!(ledger::read(&path)?.len(), 2);
    std::fs::write(&path, format!("{{\"id\":\"0190\n{text}"))?;
    assert!(ledger::read(&path).is_err(), "a torn line in the middle is damage, and said to be");
    std::fs::remove_file(&path)?;
    Ok(())
}
