//! The script that changes the limit of spans follows the rules of the model.

use leasehold_tests::{
    model::recovery::{
        SPAN_CONFIGURED, SPAN_MIN,
        limit::{CHANGE, Rules, SpanLimit},
    },
    redis::{connection::RedisConnection, server::RedisServer},
    scale::scaled_count,
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

const SCRIPT: &str = include_str!("../../../server/src/store/redis/lua/spans.lua");
const CLOCK: &str = "local time = redis.call('TIME')\n";
const ERA: &str = "lh:era";
const SPANS: &str = "lh:spans";
/// Q without the limit.
const REST: i64 = 20;
/// Number of runs of the script at full scale.
const RUNS: usize = 30_000;

/// The script with the time in milliseconds as an argument.
fn script() -> String {
    assert!(SCRIPT.contains(CLOCK));
    SCRIPT.replace(CLOCK, "local time = { 0, ARGV[7] * 1000 }\n")
}

fn era(limit: SpanLimit) -> String {
    let SpanLimit { before, after, at } = limit;
    format!("id|0|span:{before}:{after}:{at}|cause:restarted")
}

fn parse(era: &str) -> SpanLimit {
    let fields = era
        .strip_prefix("id|0|span:")
        .and_then(|rest| rest.strip_suffix("|cause:restarted"));
    let numbers: Vec<u64> = fields
        .expect(era)
        .split(':')
        .map(|number| number.parse().expect(era))
        .collect();
    SpanLimit {
        before: numbers[0],
        after: numbers[1],
        at: numbers[2].cast_signed(),
    }
}

/// Runs the script, and returns the era of its reply.
async fn run(raw: &mut RedisConnection, script: &str, id: &str, seen: u64, now: i64) -> String {
    let numbers = [
        seen.cast_signed(),
        SPAN_MIN.cast_signed(),
        CHANGE.cast_signed(),
        REST,
        1,
        now,
    ];
    let numbers = numbers.map(|number| number.to_string());
    let mut words = vec!["EVAL", script, "2", ERA, SPANS, id];
    words.extend(numbers.iter().map(String::as_str));
    let reply = raw.must(&words).await;
    reply.array()[0].text().to_owned()
}

/// Returns the limits to which the model allows a change now.
fn allowed(limit: SpanLimit, now: i64) -> Vec<SpanLimit> {
    let spans = SPAN_MIN..=SPAN_CONFIGURED;
    let changed = spans.flat_map(|span| {
        let (mut raised, mut lowered) = (limit, limit);
        let is_raised = raised.raise(span, now, Rules::default());
        let is_lowered = lowered.lower(span, now, Rules::default());
        [is_raised.then_some(raised), is_lowered.then_some(lowered)]
    });
    changed.flatten().collect()
}

#[tokio::test]
async fn each_change_is_one_that_the_model_allows() {
    let server = RedisServer::start().await;
    let (mut raw, script) = (server.connect().await, script());
    let mut rng = StdRng::seed_from_u64(1);
    let (mut limit, mut now, mut raises, mut lowerings) = (
        SpanLimit {
            before: SPAN_CONFIGURED,
            after: SPAN_MIN,
            at: 150,
        },
        100,
        0,
        0,
    );
    raw.must(&["SET", ERA, &era(limit)]).await;
    for _ in 0..scaled_count(RUNS, 3_000) {
        now += [0, 1, 5, 40][rng.gen_range(0..4)];
        let seen = match rng.gen_bool(0.1) {
            true => rng.gen_range(0..=SPAN_CONFIGURED),
            false => 0,
        };
        let text = run(&mut raw, &script, "id", seen, now).await;
        assert_eq!(raw.must(&["GET", ERA]).await.text(), text, "the stored era");
        let next = parse(&text);
        let mut with_seen = limit;
        if next == limit {
            let must_raise = with_seen.raise(seen, now, Rules::default());
            assert!(!must_raise, "{limit:?} at {now} with {seen}");
            continue;
        }
        let changes = allowed(limit, now);
        assert!(changes.contains(&next), "{limit:?} to {next:?} at {now}");
        let is_raise = next.after > limit.after;
        raises += u32::from(is_raise);
        lowerings += u32::from(!is_raise);
        assert!(!is_raise || next.after >= seen, "{next:?} with {seen}");
        limit = next;
    }
    assert!(raises >= 20 && lowerings >= 20, "{raises} {lowerings}");
}

#[tokio::test]
async fn the_limit_is_lowered_after_a_window_without_larger_spans() {
    let server = RedisServer::start().await;
    let (mut raw, script) = (server.connect().await, script());
    let limit = SpanLimit {
        before: 30,
        after: 30,
        at: 0,
    };
    raw.must(&["SET", ERA, &era(limit)]).await;
    let window = 2 * (30 + REST);
    for (now, seen) in [
        (1_000, 0),
        (1_001, 30),
        (1_000 + window, 0),
        (999 + 2 * window, 0),
    ] {
        let text = run(&mut raw, &script, "id", seen, now).await;
        assert_eq!(parse(&text), limit, "at {now}");
    }
    let now = 1_000 + 2 * window;
    let lowered = parse(&run(&mut raw, &script, "id", 0, now).await);
    let expected = SpanLimit {
        before: 30,
        after: SPAN_MIN,
        at: now + 30,
    };
    assert_eq!(lowered, expected);
}

#[tokio::test]
async fn a_new_era_raises_nothing_that_is_not_requested() {
    let server = RedisServer::start().await;
    let (mut raw, script) = (server.connect().await, script());
    let limit = SpanLimit {
        before: SPAN_CONFIGURED,
        after: SPAN_MIN,
        at: 2_000,
    };
    raw.must(&["SET", ERA, &era(limit)]).await;
    for now in [1_000, 1_999, 2_001] {
        let text = run(&mut raw, &script, "id", SPAN_MIN, now).await;
        assert_eq!(parse(&text), limit, "at {now}");
    }
}

#[tokio::test]
async fn a_smaller_limit_of_a_new_era_is_not_raised_to_that_of_the_last_one() {
    let server = RedisServer::start().await;
    let (mut raw, script) = (server.connect().await, script());
    let configured = SpanLimit {
        before: SPAN_CONFIGURED,
        after: SPAN_CONFIGURED,
        at: 0,
    };
    raw.must(&["SET", ERA, &era(configured)]).await;
    run(&mut raw, &script, "id", SPAN_MIN, 1_000).await;
    let recovered = SpanLimit {
        after: SPAN_MIN,
        at: 2_000,
        ..configured
    };
    raw.must(&["SET", ERA, &era(recovered)]).await;
    for now in [1_001, 2_000] {
        let text = run(&mut raw, &script, "id", SPAN_MIN, now).await;
        assert_eq!(parse(&text), recovered, "at {now}");
    }
}

#[tokio::test]
async fn a_broker_of_another_era_changes_nothing() {
    let server = RedisServer::start().await;
    let (mut raw, script) = (server.connect().await, script());
    assert_eq!(run(&mut raw, &script, "id", 9, 1_000).await, "", "no era");
    let limit = SpanLimit {
        before: 4,
        after: 4,
        at: 0,
    };
    raw.must(&["SET", ERA, &era(limit)]).await;
    assert_eq!(run(&mut raw, &script, "other", 9, 1_000).await, "");
    assert_eq!(raw.must(&["GET", ERA]).await.text(), era(limit));
    let stamped = raw.must(&["EXISTS", SPANS]).await;
    assert_eq!(stamped.integer(), 0);
}

const ERA_SCRIPT: &str = include_str!("../../../server/src/store/redis/lua/era.lua");

/// Arguments of the script that writes an era; '' for none.
#[derive(Default)]
struct EraArguments {
    /// Run id of a master that was replaced and may write for another 3 s.
    former: &'static str,
    not_after: &'static str,
    token_floor: &'static str,
}

/// Writes an era at the time 100,000 ms, after a quarantine of 5 s, with a limit of 4 s that changes
/// after 2 s at the earliest. Returns the era in force, or `None` if it was not written.
async fn write_era(raw: &mut RedisConnection, arguments: EraArguments) -> Option<String> {
    let EraArguments {
        former,
        not_after,
        token_floor,
    } = arguments;
    assert!(ERA_SCRIPT.contains(CLOCK));
    let script = ERA_SCRIPT.replace(CLOCK, "local time = { 100, 0 }\n");
    raw.must(&["DEL", ERA]).await;
    let words = ["EVAL", &script, "2", ERA, "lh:key", "", "id", "fields"];
    let times = ["5000", "0", "", former, "3000", "0", ""];
    let limit = ["restarted", "4000", "3500", "2000", "5000"];
    let last = [not_after, token_floor];
    let reply = raw
        .must(&[&words[..], &times, &limit, &last].concat())
        .await;
    let [written, era, _] = reply.array() else {
        panic!("{reply:?}")
    };
    (written.integer() == 1).then(|| era.text().to_owned())
}

#[tokio::test]
async fn a_promotion_waits_for_the_former_master_and_its_grants() {
    let server = RedisServer::start().await;
    let mut raw = server.connect().await;
    let restarted = write_era(&mut raw, EraArguments::default()).await;
    let expected = "id|105000|fields|cause:restarted|since:100000|span:4000:3500:105000";
    assert_eq!(restarted.as_deref(), Some(expected));
    let promotion = EraArguments {
        former: "run",
        ..EraArguments::default()
    };
    let promoted = write_era(&mut raw, promotion).await;
    let expected =
        "id|108000|fields|cause:restarted|since:100000|span:4000:3500:108000|former:103000:run";
    assert_eq!(promoted.as_deref(), Some(expected));
}

#[tokio::test]
async fn an_era_is_not_written_after_its_deadline() {
    let server = RedisServer::start().await;
    let mut raw = server.connect().await;
    let until = |not_after| EraArguments {
        not_after,
        ..EraArguments::default()
    };
    assert!(write_era(&mut raw, until("100000")).await.is_some());
    assert_eq!(write_era(&mut raw, until("99999")).await, None);
    assert_eq!(raw.must(&["EXISTS", ERA]).await.integer(), 0);
}

#[tokio::test]
async fn a_floor_below_the_time_of_the_first_grant_is_not_stored() {
    let server = RedisServer::start().await;
    let mut raw = server.connect().await;
    for (token_floor, field) in [
        ("104999999", None),
        ("105000000", Some("token:105000000")),
        ("9007199254740991", Some("token:9007199254740991")),
    ] {
        let arguments = EraArguments {
            token_floor,
            ..EraArguments::default()
        };
        let era = write_era(&mut raw, arguments).await.expect("it is written");
        let found = era.split('|').find(|field| field.starts_with("token:"));
        assert_eq!(found, field);
    }
}
