//! Reload of the configuration on SIGHUP and when its file changes. Settings that need no restart
//! take effect at once.
//!
//! Every reload runs the same steps: it loads the whole configuration, compares it with the
//! settings in use, and publishes the settings that need no restart.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    time::timeout,
};

use crate::{
    config::{self, Config, Flags, ReloadableConfig, Settings},
    metrics::{File, Metrics},
    telemetry,
};

/// Time without changes in the directory after which a file counts as completely written. With
/// constant changes the file is read after [`SETTLE_TIMEOUT`].
const SETTLE_TIME: Duration = Duration::from_millis(200);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Watcher that reloads the configuration.
#[derive(Debug)]
pub struct ConfigReloader {
    hangup: Signal,
    flags: Flags,
    dev: bool,
    in_use: Settings,
    live: watch::Sender<ReloadableConfig>,
    metrics: Metrics,
}

impl ConfigReloader {
    /// Installs the handler of SIGHUP.
    ///
    /// # Errors
    /// If the handler cannot be installed.
    pub fn install(flags: &Flags, config: &Config) -> io::Result<Self> {
        config.metrics.reloaded(File::Configuration, true);
        Ok(Self {
            metrics: config.metrics.clone(),
            hangup: signal(SignalKind::hangup())?,
            flags: flags.clone(),
            dev: config.dev,
            in_use: config.settings.clone(),
            live: config.live.clone(),
        })
    }

    /// Watches the file and handles SIGHUP. Does not return while SIGHUP can be received.
    pub async fn run(mut self) {
        // A pipe can be read only once.
        let path = self.flags.config.clone().filter(|path| path.is_file());
        let Some(path) = path else {
            while self.hangup.recv().await.is_some() {
                tracing::info!("SIGHUP ignored: there is no --config file to reload");
            }
            return;
        };
        let (sender, mut changes) = mpsc::channel(1);
        // The file may have changed since it was read at start-up.
        let _ = sender.try_send(());
        let _watcher = watch_directory(&path, sender);
        let mut last_text = None;
        loop {
            tokio::select! {
                _ = self.hangup.recv() => tracing::info!("SIGHUP: reloading the configuration"),
                Some(()) = changes.recv() => {
                    wait_until_settled(&mut changes).await;
                    let text = fs::read(&path).ok();
                    // The event may be about another file of the directory.
                    if text == last_text {
                        continue;
                    }
                    last_text = text;
                }
            }
            self.reload();
        }
    }

    fn reload(&mut self) {
        let new_settings = match Config::load(&self.flags, self.dev) {
            Ok(new_settings) => new_settings.settings,
            Err(problems) => {
                self.metrics.reloaded(File::Configuration, false);
                for problem in problems {
                    tracing::error!("{problem}");
                }
                tracing::error!("keeping the current configuration");
                return;
            }
        };
        self.metrics.reloaded(File::Configuration, true);
        // If the new values are invalid in combination with the settings in use, all changes wait
        // for the restart.
        if let Ok((live, settings)) = config::reloadable(&new_settings, &self.in_use) {
            let changes = settings.changes_since(&self.in_use);
            self.in_use.update(settings);
            telemetry::set_filter(&live.log_filter);
            self.live.send_replace(live);
            for change in changes {
                tracing::info!("changed: {change}");
            }
        }
        let pending_changes = new_settings.changes_since(&self.in_use);
        if !pending_changes.is_empty() {
            tracing::warn!("restart required to change: {}", pending_changes.join(", "));
        }
    }
}

/// Sends a message for every change in the directory of the file. The directory is watched, because
/// editors replace files by renaming, and Kubernetes replaces a symbolic link.
fn watch_directory(path: &Path, sender: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        Some(_) | None => PathBuf::from("."),
    };
    let on_event = move |event: notify::Result<Event>| {
        // Read access is not a change. An error counts as a change, because it may have hidden one.
        if event.map_or(true, |event| !event.kind.is_access()) {
            // If the channel is full, a message is pending already.
            let _ = sender.try_send(());
        }
    };
    let watcher = notify::recommended_watcher(on_event).and_then(|mut watcher| {
        watcher.watch(&directory, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    watcher
        .inspect_err(|error| {
            let directory = directory.display();
            tracing::warn!(%error, "cannot watch {directory}: only SIGHUP reloads");
        })
        .ok()
}

async fn wait_until_settled(changes: &mut mpsc::Receiver<()>) {
    let settled = async { while let Ok(Some(())) = timeout(SETTLE_TIME, changes.recv()).await {} };
    // Constant changes in the directory must not block a reload.
    let _ = timeout(SETTLE_TIMEOUT, settled).await;
}
