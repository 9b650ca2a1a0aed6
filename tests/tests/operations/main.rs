//! The broker as operators run it: configuration, logs, health, reload, drain, upgrades.

mod alone {
    mod chart_upgrade;
}
mod loads {
    mod rolling;
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
