use std::time::SystemTime;

use anyhow::Result;
use demo::ledger::{self, Ledger};
use uuid::Uuid;

#[test]
fn ledger_keeps_each_acknowledgement_and_ignores_a_torn_last_line() -> Result<()> {
    let path = std::env::temp_dir().join(format!("ledger-{}.jsonl", Uuid::new_v4()));
    assert!(ledger::read(&path)?.is_empty(), "no file means no acknowledgement");
    let ids = [Uuid::new_v4(), Uuid::new_v4()];
    let log = Ledger::open(&path)?;
    log.record(ids[0], SystemTime::now());
    log.record(ids[1], SystemTime::now());
    log.record(ids[1], SystemTime::now());
    assert_eq!(log.recorded(), 3);
    drop(log);

    let again = Ledger::open(&path)?;
    assert_eq!(again.recorded(), 0, "counted since it was opened");
    assert_eq!(again.acknowledged()?.len(), 2, "each id of the file once");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, format!("{text}{{\"id\":\"0190"))?;
    assert_eq!(ledger::read(&path)?.len(), 2);
    std::fs::write(&path, format!("{{\"id\":\"0190\n{text}"))?;
    assert!(ledger::read(&path).is_err(), "a torn line in the middle is an error");
    std::fs::remove_file(&path)?;
    Ok(())
}
