//! `ls`, `get`, `watch` and `check-token`: looking, without touching.

use std::time::Duration;

use leasehold_proto::{
    text::plain,
    v1::{
        self as pb, CheckFencingTokenRequest, GetLockRequest, ListLocksRequest, LockRef,
        WatchLocksRequest,
    },
};
use tokio::time::sleep;
use tonic::Code;

use super::lease::held_by;
use crate::{
    args::{CheckToken, Format, Get, ListFormat, Ls, Reach, Watch},
    broker::Broker,
    exit::{Failure, LOST},
    json,
    settings::Settings,
    show::{self, print},
};

/// Between two brokers, when one has ended a watch.
const WATCH_AGAIN: Duration = Duration::from_millis(500);
/// Where a watch goes on from that was told nothing yet.
const BEGUN: &str = "0";
/// The most that brokers give.
const PAGE_SIZE: i32 = 1_000;

pub(crate) async fn get(args: Get, reach: &Reach) -> Result<u8, Failure> {
    let settings = Settings::read(reach)?;
    let broker = Broker::connect(&settings).await?;
    let request = broker.request(GetLockRequest {
        namespace: settings.namespace.clone(),
        name: args.name.clone(),
    });
    let lock = match broker.inspection().get_lock(request).await {
        Ok(response) => response.into_inner().lock,
        Err(status) if status.code() == Code::NotFound => None,
        Err(status) => return Err(broker.refused(&format!("cannot show {:?}", args.name), &status)),
    };
    let text = match (lock, args.output.output) {
        (None, Format::Json) => json::pretty(&json::Lock::free(&settings.namespace, &args.name)),
        (None, Format::Text) => format!(
            "{} is free: nobody holds it or waits for it",
            plain(&args.name)
        ),
        (Some(lock), Format::Json) => json::pretty(&json::Lock::from(&lock)),
        (Some(lock), Format::Text) => described(&lock),
    };
    print(&text)?;
    Ok(0)
}

/// One lock for people.
fn described(lock: &pb::Lock) -> String {
    let target = lock.target.clone().unwrap_or_default();
    let kind = match (target.mode(), target.limit) {
        (pb::LockMode::Semaphore, limit) => format!("semaphore of {limit}"),
        (pb::LockMode::Shared, _) => "shared".to_owned(),
        (pb::LockMode::Exclusive | pb::LockMode::Unspecified, _) => "exclusive".to_owned(),
    };
    let mut text = format!(
        "{}/{}: {}, {kind}, newest fencing token {}",
        plain(&target.namespace),
        plain(&target.name),
        json::state(lock),
        lock.last_fencing_token
    );
    for holder in &lock.holders {
        let left = show::about(show::duration(holder.remaining));
        text += &format!(
            "\n  held by {}\n    lease {}, token {}, {left} left{}{}",
            held_by(holder),
            plain(&holder.lease_id),
            holder.fencing_token,
            permits(holder),
            labels(holder)
        );
    }
    for (index, waiter) in lock.waiters.iter().enumerate() {
        let place = index + 1;
        text += &format!(
            "\n  {place}. waits: {}{}{}",
            held_by(waiter),
            permits(waiter),
            labels(waiter)
        );
    }
    let shown = i32::try_from(lock.waiters.len()).unwrap_or(i32::MAX);
    if lock.queue_length > shown {
        text += &format!("\n  and {} more wait", lock.queue_length - shown);
    }
    text
}

fn permits(holder: &pb::Holder) -> String {
    let permits = holder.target.as_ref().map_or(0, |target| target.permits);
    if permits > 0 {
        format!(", {permits} permits")
    } else {
        String::new()
    }
}

fn labels(holder: &pb::Holder) -> String {
    let labels = holder.owner.iter().flat_map(|owner| &owner.labels);
    let mut labels: Vec<_> = labels
        .map(|(key, value)| format!(" {key}={value}"))
        .collect();
    labels.sort_unstable();
    plain(&labels.concat())
}

pub(crate) async fn list(args: Ls, reach: &Reach) -> Result<u8, Failure> {
    let settings = Settings::read(reach)?;
    let broker = Broker::connect(&settings).await?;
    let mut request = ListLocksRequest {
        namespace: namespace(args.all_namespaces, &settings),
        name_prefix: args.prefix,
        owner_id: args.owner.unwrap_or_default(),
        page_size: PAGE_SIZE,
        page_token: String::new(),
    };
    let mut locks = Vec::new();
    loop {
        let page = broker
            .inspection()
            .list_locks(broker.request(request.clone()))
            .await;
        let page = page.map_err(|status| broker.refused("cannot list locks", &status))?;
        let page = page.into_inner();
        locks.extend(page.locks);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let name = |lock: &pb::Lock| {
        let target = lock.target.clone().unwrap_or_default();
        (target.namespace, target.name)
    };
    locks.sort_by_key(name);
    // A lock may come with two pages.
    locks.dedup_by_key(|lock| name(lock));
    if args.output == ListFormat::Json {
        let locks: Vec<_> = locks.iter().map(json::Lock::from).collect();
        print(&json::pretty(&locks))?;
    } else {
        for lock in &locks {
            print(&row(lock, args.output, args.all_namespaces))?;
        }
    }
    Ok(0)
}

fn namespace(is_every: bool, settings: &Settings) -> String {
    if is_every {
        String::new()
    } else {
        settings.namespace.clone()
    }
}

/// One lock in a list, its columns parted by tabs.
fn row(lock: &pb::Lock, format: ListFormat, with_namespace: bool) -> String {
    let target = lock.target.clone().unwrap_or_default();
    let mut name = plain(&target.name);
    if with_namespace {
        name = format!("{}/{name}", plain(&target.namespace));
    }
    if format == ListFormat::Name {
        return name;
    }
    let by = lock.holders.first().map(held_by).unwrap_or_default();
    let mut row = format!("{name}\t{}\t{}\t{by}", json::state(lock), lock.queue_length);
    if format == ListFormat::Wide {
        let lease = lock.holders.first().map(|holder| plain(&holder.lease_id));
        row += &format!(
            "\t{}\t{}",
            lock.last_fencing_token,
            lease.unwrap_or_default()
        );
    }
    row
}

pub(crate) async fn watch(args: Watch, reach: &Reach) -> Result<u8, Failure> {
    let settings = Settings::read(reach)?;
    let mut request = WatchLocksRequest {
        namespace: namespace(args.all_namespaces, &settings),
        name_prefix: args.prefix,
        resume_token: String::new(),
    };
    loop {
        let broker = Broker::connect(&settings).await?;
        let refused = |status: tonic::Status| broker.refused("cannot watch locks", &status);
        let asked = broker.lasting(request.clone());
        let events = broker.inspection().watch_locks(asked).await;
        let mut events = events.map_err(refused)?.into_inner();
        // What is missed on the way to another broker is told by that one as a gap.
        if request.resume_token.is_empty() {
            BEGUN.clone_into(&mut request.resume_token);
        }
        loop {
            match events.message().await {
                Ok(Some(event)) => {
                    request.resume_token.clone_from(&event.resume_token);
                    show_event(&event, args.output.output)?;
                }
                Ok(None) => break,
                Err(status) if status.code() == Code::Unavailable => break,
                Err(status) => return Err(refused(status)),
            }
        }
        sleep(WATCH_AGAIN).await;
    }
}

fn show_event(event: &pb::WatchLocksResponse, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => print(&json::line(&json::Event::from(event))),
        Format::Text if event.r#type() == pb::watch_locks_response::EventType::Bookmark => Ok(()),
        Format::Text => print(&happened(event)),
    }
}

/// One change for people.
fn happened(event: &pb::WatchLocksResponse) -> String {
    let at = show::system_time(event.event_time).map(show::time_of_day);
    let at = at.unwrap_or_default();
    let what = json::event_type(event);
    let Some(subject) = &event.subject else {
        return format!("{at} {what}");
    };
    let target = subject.target.clone().unwrap_or_default();
    let owner = subject.owner.clone().unwrap_or_default();
    format!(
        "{at} {what} {}/{} {} {}",
        plain(&target.namespace),
        plain(&target.name),
        plain(&owner.id),
        subject.fencing_token
    )
}

pub(crate) async fn check_token(args: CheckToken, reach: &Reach) -> Result<u8, Failure> {
    let settings = Settings::read(reach)?;
    let broker = Broker::connect(&settings).await?;
    let request = broker.request(CheckFencingTokenRequest {
        lock: Some(LockRef {
            namespace: settings.namespace.clone(),
            name: args.name.clone(),
        }),
        fencing_token: args.token,
    });
    let checked = broker.locks().check_fencing_token(request).await;
    let remaining = match checked {
        Ok(response) => Some(show::duration(response.into_inner().remaining)),
        Err(status) => {
            let failure =
                broker.refused(&format!("token {} of {:?}", args.token, args.name), &status);
            if failure.code != LOST {
                return Err(failure);
            }
            show::say(&failure.text);
            None
        }
    };
    let left = remaining.unwrap_or_default();
    match (args.output.output, remaining) {
        (Format::Json, _) => print(&json::pretty(&json::Checked {
            namespace: settings.namespace,
            name: args.name,
            fencing_token: args.token,
            is_live: remaining.is_some(),
            remaining: show::exact(left),
            remaining_ms: json::millis(left),
        }))?,
        (Format::Text, Some(_)) => print(&format!("live, {} left", show::about(left)))?,
        (Format::Text, None) => {}
    }
    Ok(if remaining.is_some() { 0 } else { LOST })
}
