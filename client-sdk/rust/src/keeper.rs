//! The task behind a stream: keeps its leases and waits alive, on one broker after the other.

mod credential;
mod leases;
mod link;
mod moves;
mod times;
mod waits;

use std::{collections::HashMap, time::Duration};

use futures::{
    future::{BoxFuture, OptionFuture},
    stream::{FuturesUnordered, StreamExt as _},
};
use leasehold_proto::v1::{
    GetLockRequest, GetLockResponse, LockRef, hold_response::Message as Response,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Interval, MissedTickBehavior, interval, timeout},
};
use tonic::Status;

pub(crate) use self::link::{Link, first_link};
use self::{leases::Owned, link::About, moves::Move, waits::Wait};
use crate::{
    client::SHUTDOWN_LIMIT,
    clock,
    endpoint::{NotOpen, SharedBrokers},
    error::{Error, Holder, Refusal, holder, refused, status, time},
    order::Order,
};

/// How often the time is looked at. Not later: no timer runs through a suspend.
const TICK: Duration = Duration::from_millis(50);

/// A unary call's end.
enum Done {
    /// A release that a break had left open.
    Released(String, Result<(), Box<Status>>),
    /// Somebody else was told.
    Told,
}

pub(crate) struct Keeper {
    brokers: SharedBrokers,
    link: Option<Box<Link>>,
    moving: Move,
    waits: HashMap<String, Wait>,
    leases: HashMap<String, Owned>,
    /// Leases that are lost, and whose guards have not ended yet.
    lost: HashMap<String, Owned>,
    /// None of them needs anything before.
    look_at: Duration,
    /// What was refused for now, and when to send it again.
    again: Vec<(Duration, About)>,
    /// Unary calls under way.
    calls: FuturesUnordered<BoxFuture<'static, Done>>,
}

/// What happened next.
enum Event {
    Heard(Option<Response>),
    Opened(Result<Box<Link>, NotOpen>),
    Order(Option<Order>),
    Done(Done),
    Tick,
}

impl Keeper {
    /// `first` is an open stream, and the number of its endpoint.
    pub(crate) fn new(brokers: SharedBrokers, first: Option<(usize, Box<Link>)>) -> Self {
        let (at, link) = first.map_or((0, None), |(at, link)| (at, Some(link)));
        Self {
            brokers,
            link,
            moving: Move::new(at),
            waits: HashMap::new(),
            leases: HashMap::new(),
            lost: HashMap::new(),
            look_at: Duration::ZERO,
            again: Vec::new(),
            calls: FuturesUnordered::new(),
        }
    }

    /// Serves until told to close, or until nobody can give an order any more.
    pub(crate) async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        if self.link.is_none() {
            self.leave(Duration::ZERO);
        }
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut done = None;
        loop {
            match self.next(&mut orders, &mut ticks).await {
                Event::Heard(Some(message)) => self.hear(message),
                Event::Heard(None) => self.broken(),
                Event::Opened(opened) => self.opened(opened),
                Event::Order(Some(Order::Close { done: tell })) => {
                    done = Some(tell);
                    break;
                }
                Event::Order(Some(order)) => self.obey(order),
                Event::Order(None) => break,
                Event::Done(Done::Released(lease_id, result)) => self.released(&lease_id, result),
                Event::Done(Done::Told) => {}
                Event::Tick => self.tick(),
            }
        }
        self.close(done).await;
    }

    async fn next(
        &mut self,
        orders: &mut mpsc::UnboundedReceiver<Order>,
        ticks: &mut Interval,
    ) -> Event {
        let is_idle = self.waits.is_empty() && self.leases.is_empty() && self.moving.is_settled();
        let heard = OptionFuture::from(self.link.as_mut().map(|link| link.next()));
        tokio::select! {
            Some(message) = heard => Event::Heard(message),
            opened = self.moving.opened() => Event::Opened(opened),
            order = orders.recv() => Event::Order(order),
            Some(done) = self.calls.next() => Event::Done(done),
            _ = ticks.tick(), if !is_idle => Event::Tick,
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Acquire(ask) => self.ask(*ask),
            Order::Cancel { request_id } => self.cancel(&request_id),
            Order::Release {
                lease_id,
                entry,
                answer,
            } => self.give_back(&lease_id, entry, answer),
            Order::Look { lock, answer } => {
                let Some(link) = &self.link else {
                    let refusal = Refusal::new(self.moving.why_not());
                    // Nobody waits for it any more.
                    let _ = answer.send(Err(Error::Unavailable(refusal)));
                    return;
                };
                let connection = link.connection.clone();
                self.calls.push(Box::pin(async move {
                    let LockRef { namespace, name } = lock;
                    let request = connection.request(GetLockRequest { namespace, name });
                    let _ = answer.send(match connection.inspection().get_lock(request).await {
                        Ok(state) => Ok(holders(state.into_inner())),
                        Err(none) if none.code() == tonic::Code::NotFound => Ok(Vec::new()),
                        Err(error) => Err(refused(&status(&error))),
                    });
                    Done::Told
                }));
            }
            Order::Close { .. } => {}
        }
    }

    fn hear(&mut self, message: Response) {
        match message {
            Response::Queued(queued) => self.queued(&queued),
            Response::Granted(granted) => self.granted(granted),
            Response::Refused(refused) => self.refused(&refused),
            Response::Attached(attached) => self.attached(&attached),
            Response::Ack(ack) => self.acknowledged(ack),
            Response::Released(released) => {
                let answered = self.answered(released.call_id);
                match answered {
                    Some((About::Release(lease_id, None), _)) => {
                        self.released(&lease_id, Ok(()));
                    }
                    Some((About::Release(lease_id, Some(part)), _)) => {
                        self.part_released(&lease_id, part, Ok(released.hold_count));
                    }
                    Some((
                        About::Acquire(_)
                        | About::Attach(_)
                        | About::Credential(_)
                        | About::Nothing,
                        _,
                    ))
                    | None => {}
                }
            }
            Response::Ended(ended) => self.ended(&ended),
            Response::ReleaseRequested(asked) => {
                tracing::info!(
                    lease_id = asked.lease_id,
                    within = ?time(asked.grace),
                    "the broker asks for a lease: {}", asked.message
                );
            }
            Response::Reconnect(reconnect) => self.leave(time(reconnect.delay)),
            Response::Done(done) => {
                if let Some((About::Credential(shown), _)) = self.answered(done.call_id) {
                    self.credential_accepted(shown);
                }
            }
        }
    }

    fn tick(&mut self) {
        let now = clock::now();
        self.watch_waits(now);
        self.look_if_due(now);
        self.watch_credential(now);
        self.send_again(now);
        self.open_if_due(now);
    }

    fn answered(&mut self, call_id: i64) -> Option<(About, Duration)> {
        self.link.as_mut()?.answered(call_id)
    }

    /// What was put off, and is due.
    fn send_again(&mut self, now: Duration) {
        if self.link.is_none() {
            return;
        }
        let due: Vec<_> = self.again.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, about) in due {
            match about {
                About::Acquire(request_id) => self.acquire(&request_id),
                About::Attach(lease_id) => self.attach(&lease_id),
                About::Release(lease_id, None) => self.release(&lease_id),
                About::Release(lease_id, Some(part)) => self.release_part(&lease_id, part),
                About::Credential(_) | About::Nothing => {}
            }
        }
    }

    /// Everything is given back.
    async fn close(mut self, done: Option<oneshot::Sender<()>>) {
        for (_, mut wait) in self.waits.drain() {
            wait.answer(Err(Error::Closed));
        }
        self.give_back_all_lost().await;
        let leases = self.leases.drain();
        let releases: Vec<_> = leases.filter_map(|(_, owned)| owned.closed()).collect();
        let is_closed = match self.link.take() {
            Some(link) => timeout(SHUTDOWN_LIMIT / 2, link.close()).await.is_ok(),
            None => false,
        };
        for release in releases {
            release.closed(is_closed);
        }
        if let Some(done) = done {
            // Whoever asked may be gone.
            let _ = done.send(());
        }
    }
}

fn holders(state: GetLockResponse) -> Vec<Holder> {
    let lock = state.lock.unwrap_or_default();
    lock.holders.iter().map(holder).collect()
}
