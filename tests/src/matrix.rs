//! The matrix of who may do what: every call of the API as its description has it, every way by which a
//! lock's name can enter, every kind of caller.

pub mod ask;
pub mod fill;
pub mod line;
pub mod needs;
pub mod overheard;
pub mod roles;
pub mod rules;
pub mod site;
pub mod stream;
pub mod walk;
pub mod wire;
