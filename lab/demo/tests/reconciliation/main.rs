//! The reconciliation finds every violation. The tests plant one at a time in a real database: a check that cannot fail
//! proves nothing.

mod acknowledgements;
mod records;
mod runbook;
mod set_aside;
mod violations;
