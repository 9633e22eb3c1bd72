//! The reconciliation: one query over one snapshot compares the acknowledged orders with the records of all services
//! and of the payment provider. It finds what is missing, doubled, without a cause or out of order, and sums that do
//! not agree.

mod query;
mod result;
mod settle;
mod table;

pub use query::query;
pub use result::{Finding, Kind, PLACES, Reconciliation, SetAside};
pub use settle::{Ending, Settled, Transit, Wait, settle};
pub use table::DuplicatesDropped;
