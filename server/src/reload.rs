//! Reload: at SIGHUP, and when the file changes, what needs no restart takes effect.
//!
//! One way: a change is noticed, everything is loaded, compared with what is in use, published.

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
    config::{self, Config, Flags, Live, Settings},
    metrics::{File, Metrics},
    telemetry::LogFilter,
};

/// A file counts as written when its directory was quiet for so long, or at last after `BUSY_MOST`.
const QUIET: Duration = Duration::from_millis(200);
const BUSY_MOST: Duration = Duration::from_secs(2);

/// The configuration in use, and where a newer one comes from.
#[derive(Debug)]
pub struct Reload {
    hangup: Signal,
    flags: Flags,
    dev: bool,
    in_use: Settings,
    live: watch::Sender<Live>,
    log_filter: LogFilter,
    metrics: Metrics,
}

impl Reload {
    /// Catches SIGHUP from now on.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn catch(flags: &Flags, config: &Config, log_filter: LogFilter) -> io::Result<Self> {
        config.metrics.reloaded(File::Configuration, true);
        Ok(Self {
            metrics: config.metrics.clone(),
            hangup: signal(SignalKind::hangup())?,
            flags: flags.clone(),
            dev: config.dev,
            in_use: config.settings.clone(),
            live: config.live.clone(),
            log_filter,
        })
    }

    /// Follows the file. Never ends.
    pub async fn follow(mut self) {
        // A pipe could be read only once.
        let path = self.flags.config.clone().filter(|path| path.is_file());
        let Some(path) = path else {
            while self.hangup.recv().await.is_some() {
                tracing::info!("SIGHUP: there is no file of --config to read again");
            }
            return;
        };
        let (sender, mut changes) = mpsc::channel(1);
        // It may have changed since it was read for the start.
        let _ = sender.try_send(());
        let _watcher = watch_directory(&path, sender);
        let mut seen = None;
        loop {
            tokio::select! {
                _ = self.hangup.recv() => tracing::info!("SIGHUP: reading the configuration again"),
                Some(()) = changes.recv() => {
                    quiet(&mut changes).await;
                    let text = fs::read(&path).ok();
                    // Others may write into the directory.
                    if text == seen {
                        continue;
                    }
                    seen = text;
                }
            }
            self.reload();
        }
    }

    fn reload(&mut self) {
        let wanted = match Config::load(&self.flags, self.dev) {
            Ok(wanted) => wanted.settings,
            Err(problems) => {
                self.metrics.reloaded(File::Configuration, false);
                for problem in problems {
                    tracing::error!("{problem}");
                }
                tracing::error!("the configuration in use stays");
                return;
            }
        };
        self.metrics.reloaded(File::Configuration, true);
        // Where the two do not go together all of it waits for the restart.
        if let Ok((live, settings)) = config::reloadable(&wanted, &self.in_use) {
            let changes = settings.since(&self.in_use);
            self.in_use.update(settings);
            self.log_filter.set(&live.log_filter);
            self.live.send_replace(live);
            for change in changes {
                tracing::info!("changed: {change}");
            }
        }
        let waiting = wanted.since(&self.in_use);
        if !waiting.is_empty() {
            let waiting: Vec<_> = waiting.iter().map(ToString::to_string).collect();
            tracing::warn!("needs a restart: {}", waiting.join(", "));
        }
    }
}

/// Tells of every change in the directory of the file: editors rename, Kubernetes swaps a link.
fn watch_directory(path: &Path, sender: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        Some(_) | None => PathBuf::from("."),
    };
    let tell = move |event: notify::Result<Event>| {
        // Reading is no change. A failure may have hidden one.
        if event.map_or(true, |event| !event.kind.is_access()) {
            // Full: one is being told of already.
            let _ = sender.try_send(());
        }
    };
    let watcher = notify::recommended_watcher(tell).and_then(|mut watcher| {
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

async fn quiet(changes: &mut mpsc::Receiver<()>) {
    let quiet = async { while let Ok(Some(())) = timeout(QUIET, changes.recv()).await {} };
    // A directory that is never quiet must not hold up a reload.
    let _ = timeout(BUSY_MOST, quiet).await;
}
