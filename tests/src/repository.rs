//! Checks of the repository and of golden files.

pub mod golden;
pub mod import_graph;
pub mod paths;
pub mod shell_parser;
