//! The read-only commands `ls`, `get`, `watch` and `check-token`.

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

use super::lease::describe_holder;
use crate::{
    args::{CheckToken, ConnectionArgs, Format, Get, ListFormat, Ls, Watch},
    broker::Broker,
    exit::{Failure, LOST},
    json,
    output::{self, print},
    settings::Settings,
};

/// Pause before a watch that has ended is repeated at another broker.
const WATCH_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Resume token of a watch that has received no event yet.
const INITIAL_RESUME_TOKEN: &str = "0";
/// Largest page size that brokers accept.
const PAGE_SIZE: i32 = 1_000;

pub(crate) async fn get(args: Get, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
    let broker = Broker::connect(&settings).await?;
    let request = broker.request(GetLockRequest {
        namespace: settings.namespace.clone(),
        name: args.name.clone(),
    });
    let lock = match broker.inspection().get_lock(request).await {
        Ok(response) => response.into_inner().lock,
        Err(status) if status.code() == Code::NotFound => None,
        Err(status) => {
            return Err(
                broker.failure_from_status(&format!("cannot show {:?}", args.name), &status)
            );
        }
    };
    let text = match (lock, args.output.output) {
        (None, Format::Json) => json::pretty(&json::Lock::free(&settings.namespace, &args.name)),
        (None, Format::Text) => format!("{} is free: no holders and no waiters", plain(&args.name)),
        (Some(lock), Format::Json) => json::pretty(&json::Lock::from(&lock)),
        (Some(lock), Format::Text) => describe_lock(&lock),
    };
    print(&text)?;
    Ok(0)
}

/// Describes one lock in text.
fn describe_lock(lock: &pb::Lock) -> String {
    let target = lock.target.clone().unwrap_or_default();
    let kind = match (&lock.permit_usage, target.mode()) {
        (Some(usage), _) => describe_usage(usage),
        (None, pb::LockMode::Semaphore) => format!("semaphore of {}", target.limit),
        (None, pb::LockMode::Shared) => "shared".to_owned(),
        (None, pb::LockMode::Exclusive | pb::LockMode::Unspecified) => "exclusive".to_owned(),
    };
    let mut text = format!(
        "{}/{}: {}, {kind}, newest fencing token {}",
        plain(&target.namespace),
        plain(&target.name),
        json::state_name(lock),
        lock.last_fencing_token
    );
    if let Some(closure) = &lock.closure {
        text += &format!("\n  {}", output::describe_closure(closure));
    }
    for holder in &lock.holders {
        let remaining = output::format_rounded(output::duration(holder.remaining));
        text += &format!(
            "\n  held by {}\n    lease {}, token {}, {remaining} left{}{}",
            describe_holder(holder),
            plain(&holder.lease_id),
            holder.fencing_token,
            format_permits(holder),
            format_labels(holder)
        );
    }
    for (index, waiter) in lock.waiters.iter().enumerate() {
        let position = index + 1;
        text += &format!(
            "\n  {position}. waits: {}{}{}",
            describe_holder(waiter),
            format_permits(waiter),
            format_labels(waiter)
        );
    }
    let listed = i32::try_from(lock.waiters.len()).unwrap_or(i32::MAX);
    if lock.queue_length > listed {
        text += &format!("\n  and {} more wait", lock.queue_length - listed);
    }
    text
}

fn describe_usage(usage: &pb::PermitUsage) -> String {
    let free = (usage.limit - usage.used).max(0);
    let set = if usage.is_limit_set { ", set" } else { "" };
    format!(
        "semaphore: {} permits used, {free} free (limit {}{set})",
        usage.used, usage.limit
    )
}

fn format_permits(holder: &pb::Holder) -> String {
    let permits = holder.target.as_ref().map_or(0, |target| target.permits);
    if permits > 0 {
        format!(", {permits} permits")
    } else {
        String::new()
    }
}

fn format_labels(holder: &pb::Holder) -> String {
    let labels = holder.owner.iter().flat_map(|owner| &owner.labels);
    let mut labels: Vec<_> = labels
        .map(|(key, value)| format!(" {key}={value}"))
        .collect();
    labels.sort_unstable();
    plain(&labels.concat())
}

pub(crate) async fn list(args: Ls, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
    let broker = Broker::connect(&settings).await?;
    let mut request = ListLocksRequest {
        namespace: namespace_filter(args.all_namespaces, &settings),
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
        let page =
            page.map_err(|status| broker.failure_from_status("cannot list locks", &status))?;
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
    // The same lock may be on two pages.
    locks.dedup_by_key(|lock| name(lock));
    if args.output == ListFormat::Json {
        let locks: Vec<_> = locks.iter().map(json::Lock::from).collect();
        print(&json::pretty(&locks))?;
    } else {
        for lock in &locks {
            print(&format_row(lock, args.output, args.all_namespaces))?;
        }
    }
    Ok(0)
}

fn namespace_filter(is_every: bool, settings: &Settings) -> String {
    if is_every {
        String::new()
    } else {
        settings.namespace.clone()
    }
}

/// Formats one lock of a list, with tabs between the columns.
fn format_row(lock: &pb::Lock, format: ListFormat, with_namespace: bool) -> String {
    let target = lock.target.clone().unwrap_or_default();
    let mut name = plain(&target.name);
    if with_namespace {
        name = format!("{}/{name}", plain(&target.namespace));
    }
    if format == ListFormat::Name {
        return name;
    }
    let by = match (lock.holders.first(), &lock.closure) {
        (Some(holder), _) => describe_holder(holder),
        (None, Some(closure)) => output::describe_closure(closure),
        (None, None) => String::new(),
    };
    let mut row = format!(
        "{name}\t{}\t{}\t{by}",
        json::state_name(lock),
        lock.queue_length
    );
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

pub(crate) async fn watch(args: Watch, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
    let mut request = WatchLocksRequest {
        namespace: namespace_filter(args.all_namespaces, &settings),
        name_prefix: args.prefix,
        resume_token: String::new(),
    };
    loop {
        let broker = Broker::connect(&settings).await?;
        let failure =
            |status: tonic::Status| broker.failure_from_status("cannot watch locks", &status);
        let list_request = broker.request_without_timeout(request.clone());
        let events = broker.inspection().watch_locks(list_request).await;
        let mut events = events.map_err(failure)?.into_inner();
        // Events that are missed during the move to another broker are reported by that broker as a
        // gap.
        if request.resume_token.is_empty() {
            INITIAL_RESUME_TOKEN.clone_into(&mut request.resume_token);
        }
        loop {
            match events.message().await {
                Ok(Some(event)) => {
                    request.resume_token.clone_from(&event.resume_token);
                    print_event(&event, args.output.output)?;
                }
                Ok(None) => break,
                Err(status) if status.code() == Code::Unavailable => break,
                Err(status) => return Err(failure(status)),
            }
        }
        sleep(WATCH_RETRY_DELAY).await;
    }
}

fn print_event(event: &pb::WatchLocksResponse, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => print(&json::line(&json::Event::from(event))),
        Format::Text if event.r#type() == pb::watch_locks_response::EventType::Bookmark => Ok(()),
        Format::Text => print(&describe_event(event)),
    }
}

/// Describes one event in text.
fn describe_event(event: &pb::WatchLocksResponse) -> String {
    let time = output::system_time(event.event_time).map(output::format_time_of_day);
    let time = time.unwrap_or_default();
    let event_type = json::event_type_name(event);
    let Some(subject) = &event.subject else {
        return format!("{time} {event_type}");
    };
    let target = subject.target.clone().unwrap_or_default();
    let owner = subject.owner.clone().unwrap_or_default();
    format!(
        "{time} {event_type} {}/{} {} {}",
        plain(&target.namespace),
        plain(&target.name),
        plain(&owner.id),
        subject.fencing_token
    )
}

pub(crate) async fn check_token(
    args: CheckToken,
    connection: &ConnectionArgs,
) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
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
        Ok(response) => Some(output::duration(response.into_inner().remaining)),
        Err(status) => {
            let failure = broker
                .failure_from_status(&format!("token {} of {:?}", args.token, args.name), &status);
            if failure.code != LOST {
                return Err(failure);
            }
            output::print_message(&failure.text);
            None
        }
    };
    let time_left = remaining.unwrap_or_default();
    match (args.output.output, remaining) {
        (Format::Json, _) => print(&json::pretty(&json::CheckTokenOutput {
            namespace: settings.namespace,
            name: args.name,
            fencing_token: args.token,
            is_live: remaining.is_some(),
            remaining: output::format_exact(time_left),
            remaining_ms: json::millis(time_left),
        }))?,
        (Format::Text, Some(_)) => {
            print(&format!("live, {} left", output::format_rounded(time_left)))?
        }
        (Format::Text, None) => {}
    }
    Ok(if remaining.is_some() { 0 } else { LOST })
}
