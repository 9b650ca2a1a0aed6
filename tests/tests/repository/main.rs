//! Checks of the repository: imports, form of files, and documentation that names code.

mod documented_commands;
mod documented_limits;
mod documented_links;
mod documented_tests;
mod prose;
mod source_files;
mod test_needs;
mod tidy;
