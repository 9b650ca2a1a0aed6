//! The task behind a holder: keeps its leases and waits alive across streams.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use leasehold_proto::v1::{
    AcquireRequest, AttachLease, HoldAcquire, HoldRelease, Lease, Refused,
    hold_request::Message as Request,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{interval, sleep},
};
use tonic::Code;

use super::{
    Counters, End, Kept, Known, Order,
    link::{About, Link},
};
use crate::clock::boottime;

const TICK: Duration = Duration::from_millis(25);
/// The longest pause between heartbeats while a call waits.
const WAITING: Duration = Duration::from_secs(2);
/// Clients of a broker that dies don't all come to the next one at the same moment.
const JITTER: Duration = Duration::from_millis(100);
/// How much longer than its wait a call of unknown outcome is repeated.
pub(super) const REPEAT_LIMIT: Duration = Duration::from_secs(10);

pub(super) struct Wait {
    pub(super) request: AcquireRequest,
    pub(super) until: Duration,
    pub(super) attach_number: i32,
    pub(super) answer: oneshot::Sender<Result<Kept, Refused>>,
}

pub(super) struct Owned {
    pub(super) lease: Lease,
    pub(super) attach_number: i32,
    /// Whether it is on the present stream.
    pub(super) is_here: bool,
    pub(super) known: watch::Sender<Known>,
    pub(super) release: Option<oneshot::Sender<End>>,
}

/// How the service of a stream ended.
enum Over {
    Broken,
    Left,
    Closing,
    Dropped,
}

pub(super) struct Keeper {
    endpoints: Vec<SocketAddr>,
    at: usize,
    patience: Duration,
    pub(super) counters: Arc<Counters>,
    pub(super) waits: HashMap<String, Wait>,
    pub(super) leases: HashMap<String, Owned>,
    /// What was refused for now, and when to send it again.
    pub(super) again: Vec<(Duration, About)>,
}

impl Keeper {
    pub(super) fn new(
        endpoints: &[SocketAddr],
        first: usize,
        patience: Duration,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            endpoints: endpoints.to_vec(),
            at: first,
            patience,
            counters,
            waits: HashMap::new(),
            leases: HashMap::new(),
            again: Vec::new(),
        }
    }

    pub(super) async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        loop {
            let endpoint = self.endpoints[self.at % self.endpoints.len()];
            let over = match Link::open(endpoint, self.patience < Duration::MAX).await {
                Some(mut link) => {
                    self.counters.opened.send_modify(|count| *count += 1);
                    match self.serve(&mut link, &mut orders).await {
                        Over::Closing => return link.close().await,
                        over @ (Over::Broken | Over::Left | Over::Dropped) => over,
                    }
                }
                None => Over::Broken,
            };
            match over {
                Over::Broken => {
                    self.counters.breaks.fetch_add(1, Ordering::Relaxed);
                }
                Over::Left => {}
                Over::Closing | Over::Dropped => return,
            }
            self.at += 1;
            sleep(JITTER.mul_f64(rand::random::<f64>())).await;
            self.drop_overdue();
        }
    }

    async fn serve(
        &mut self,
        link: &mut Link,
        orders: &mut mpsc::UnboundedReceiver<Order>,
    ) -> Over {
        self.take_up(link);
        let mut tick = interval(TICK);
        loop {
            tokio::select! {
                message = link.next() => match message {
                    Some(message) => self.hear(link, message),
                    None => return Over::Broken,
                },
                order = orders.recv() => match order {
                    Some(Order::Close) => return Over::Closing,
                    Some(order) => self.obey(link, order).await,
                    None => return Over::Dropped,
                },
                _ = tick.tick() => {
                    let now = boottime();
                    if self.has_leases_here() && link.is_silent(self.patience) {
                        return Over::Broken;
                    }
                    if link.leave_at.is_some_and(|at| at <= now) {
                        return Over::Left;
                    }
                    self.beat(link, now);
                    self.repeat(link, now);
                }
            }
        }
    }

    /// Brings everything to a new stream.
    fn take_up(&mut self, link: &mut Link) {
        self.again.clear();
        let leases: Vec<_> = self.leases.keys().cloned().collect();
        for lease_id in leases {
            self.attach(link, lease_id);
        }
        let waits: Vec<_> = self.waits.keys().cloned().collect();
        for request_id in waits {
            self.acquire(link, request_id);
        }
    }

    async fn obey(&mut self, link: &mut Link, order: Order) {
        match order {
            Order::Acquire {
                request,
                wait,
                answer,
            } => {
                let request_id = request.request_id.clone();
                let wait = Wait {
                    request: *request,
                    until: boottime() + wait,
                    attach_number: 0,
                    answer,
                };
                self.waits.insert(request_id.clone(), wait);
                self.acquire(link, request_id);
            }
            Order::Release { lease_id, answer } => {
                // Without a lease the answer is dropped: it was over before.
                if let Some(owned) = self.leases.get_mut(&lease_id) {
                    owned.release = Some(answer);
                    if owned.is_here {
                        release(link, lease_id);
                    }
                }
            }
            Order::Stall(time) => sleep(time).await,
            Order::Close => {}
        }
    }

    fn acquire(&mut self, link: &mut Link, request_id: String) {
        let Some(wait) = self.waits.get_mut(&request_id) else {
            return;
        };
        wait.attach_number += 1;
        if wait.attach_number > 1 {
            // A call that waited and is late already still asks once, without waiting.
            let left = wait.until.saturating_sub(boottime());
            wait.request.wait_timeout = left.try_into().ok();
        }
        let (request, attach_number) = (Some(wait.request.clone()), wait.attach_number);
        link.call(About::Acquire(request_id), |call_id| {
            Request::Acquire(HoldAcquire {
                call_id,
                request,
                attach_number,
                ..HoldAcquire::default()
            })
        });
    }

    /// Puts a lease on this stream if it is valid still.
    fn attach(&mut self, link: &mut Link, lease_id: String) {
        let Some(owned) = self.leases.get_mut(&lease_id) else {
            return;
        };
        owned.is_here = false;
        if boottime() >= owned.known.borrow().valid_until {
            return self.end(&lease_id, End::Lapsed);
        }
        owned.attach_number += 1;
        let (lease, attach_number) = (Some(owned.lease.clone()), owned.attach_number);
        link.call(About::Attach(lease_id), |call_id| {
            Request::Attach(AttachLease {
                call_id,
                lease,
                attach_number,
            })
        });
    }

    fn has_leases_here(&self) -> bool {
        self.leases.values().any(|owned| owned.is_here)
    }

    fn beat(&self, link: &mut Link, now: Duration) {
        let leases = self.leases.values();
        let held = leases.clone().map(|owned| owned.known.borrow().ttl / 3);
        let waiting = self.waits.values();
        let waiting = waiting.map(|wait| (time(wait.request.ttl) / 3).min(WAITING));
        let Some(every) = held.chain(waiting).min() else {
            return;
        };
        // A lease that has just come here may be about to run out.
        let last = link.last_beat();
        let came = |owned: &Owned| owned.is_here && owned.known.borrow().attached_at > last;
        if last.is_none_or(|last| now >= last + every) || leases.clone().any(came) {
            link.beat();
        }
    }

    fn repeat(&mut self, link: &mut Link, now: Duration) {
        let due = self.again.extract_if(.., |(at, _)| *at <= now);
        let due: Vec<_> = due.collect();
        for (_, about) in due {
            match about {
                About::Acquire(request_id) => self.acquire(link, request_id),
                About::Attach(lease_id) => self.attach(link, lease_id),
                About::Release(lease_id) => release(link, lease_id),
            }
        }
    }

    /// Nothing answers, and these calls have waited for long enough.
    fn drop_overdue(&mut self) {
        let now = boottime();
        let overdue = self
            .waits
            .extract_if(|_, wait| wait.until + REPEAT_LIMIT < now);
        for (_, wait) in overdue {
            let refused = Refused {
                code: Code::Unavailable.into(),
                ..Refused::default()
            };
            let _ = wait.answer.send(Err(refused));
        }
    }
}

pub(super) fn release(link: &mut Link, lease_id: String) {
    link.call(About::Release(lease_id.clone()), |call_id| {
        Request::Release(HoldRelease {
            call_id,
            lease_id,
            ..HoldRelease::default()
        })
    });
}

pub(super) fn time(time: Option<prost_types::Duration>) -> Duration {
    time.and_then(|time| time.try_into().ok())
        .unwrap_or_default()
}
