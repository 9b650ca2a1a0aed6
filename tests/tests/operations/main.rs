//! The broker as operators run it: configuration, logs, health, reload, drain, upgrades.

mod loads {
    mod chart_upgrade;
    mod rolling;
}
mod waits {
    mod liveness;
}

mod configuration;
mod configuration_shown;
mod dev;
mod drain;
mod health;
mod log_lines;
mod logs;
mod process;
mod reload;
mod versions;
