//! Every kind of wrong is planted in a real database, one at a time, and has to be found. A sum that cannot fail
//! proves nothing.

mod acknowledgements;
mod books;
mod operators;
mod wrongs;
