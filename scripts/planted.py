#!/usr/bin/env python3
"""Plants one fault after the other in a copy of the source, and reports what finds each, and after which time.

Each fault is a replacement of texts in files; the product has no switch for any of them. A test that is to find a fault
is run without the fault first, and must pass. Arguments are parts of names:
without arguments all faults are planted, except those that an earlier run has found. Their results are kept beside the
copy, so that an interrupted run continues; remove the file to begin again.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
COPY, BUILD = TARGET / "planted", TARGET / "planted-build"
RESULTS = TARGET / "planted.jsonl"
MEMORY, BROKER, REDIS = "server/src/store/memory", "server/src/broker", "server/src/store/redis"
FIND_SECONDS = 300  # time within which a fault must be found, after the build


@dataclass
class Finder:
    """A program or a test that finds a fault."""

    name: str
    build: list[str]  # arguments of `cargo`
    needs_broker: bool  # whether the program starts brokers as processes
    program: str  # target that is run
    run: list[str]  # arguments of the program
    failure: str  # pattern in the output of a program that has found a fault


@dataclass
class Fault:
    """A fault: its name, the texts that are replaced (file, right, wrong), and what finds it."""

    name: str
    finder: Finder
    edits: list[tuple[str, str, str]] = field(default_factory=list)


def binary(name: str, *arguments: str) -> Finder:
    """Returns a program of the tests."""
    build = ["build", "-p", "leasehold-tests", "--bin", name]
    return Finder(
        " ".join([name, *arguments]), build, False, name, list(arguments), r"^(violated: .*|[\d.]+ s \w+: .*)"
    )


def test(target: str, *names: str) -> Finder:
    """Returns the tests of a test program with these parts of names; `server` has the unit tests of the broker."""
    is_unit = target == "server"
    where = ["-p", "leasehold-server", "--lib"] if is_unit else ["-p", "leasehold-tests", "--test", target]
    program = "leasehold_server" if is_unit else target
    build, failure = ["test", *where, "--no-run"], r"^test (.*) \.\.\. FAILED"
    needs_broker = target not in ["server", "conformance"]
    return Finder(f"test {target} {' '.join(names)}", build, needs_broker, program, [*names], failure)


MODEL = binary("model", "--steps", "6000000")
EXHAUSTIVE = binary("model", "--exhaustive", "--locks", "2", "--bounds", "2,1,1,1")
DIFFERENTIAL = test("conformance", "the_scripts_answer_like_the_specification")
SIMULATION = binary("simulate", "--count", "200")

FAULTS = [
    # Faults that a reader would not see at once.
    Fault(
        "E without its fifth",
        MODEL,
        [("server/src/lock.rs", ".saturating_add(ttl_ms / EXPIRY_DIVISOR)", "")],
    ),
    Fault(
        "not_after is ignored",
        DIFFERENTIAL,
        [(f"{MEMORY}/context.rs", "if self.now() > self.not_after_ms {", "if false {")],
    ),
    Fault(
        "a claim does not compare the token",
        EXHAUSTIVE,
        [
            (
                f"{MEMORY}/holders.rs",
                "(self.lease_id, self.fencing_token) == (lease.lease_id, lease.fencing_token)",
                "self.lease_id == lease.lease_id",
            )
        ],
    ),
    Fault(
        "an attachment with an equal number is accepted",
        test("conformance", "an_attachment_that_is_no_newer_is_stale"),
        [("server/src/lock/stream.rs", "current.number < incoming.number", "current.number <= incoming.number")],
    ),
    Fault(
        "validity counts from the receipt",
        test("hold", "a_renewal_counts_from_the_heartbeat_before_its_command"),
        [
            (
                f"{BROKER}/lease_stream/completions.rs",
                "self.pending_acks.push((sequence, extended));",
                "self.pending_acks.push((self.heartbeats.latest().max(sequence), extended));",
            )
        ],
    ),
    Fault(
        "an attempt that was answered is rolled back",
        SIMULATION,
        [(f"{BROKER}/acquire.rs", "        self.undelivered.1.clear();\n", "")],
    ),
    Fault(
        "no tombstone",
        test("conformance", "an_attempt_cancelled_before_it_arrived_is_refused"),
        [(f"{MEMORY}/tombstones.rs", "        self.0.push((dead, now + TOMBSTONE_MS));\n", "")],
    ),
    Fault(
        "Q is one ttl too short",
        test("server", "the_quarantine_follows_from_the_bounds"),
        [
            (
                f"{REDIS}/era.rs",
                "span_ms(self.ttl_max_ms, self.lock_delay_max_ms)",
                "span_ms(0, self.lock_delay_max_ms)",
            )
        ],
    ),
    Fault(
        "a broker trusts what it has read of the limit for ever",
        test("server", "the_last_reading_is_trusted_until_it_is_too_old"),
        [(f"{REDIS}/span_limit.rs", "terms.trusts_age(age_ms).then_some(last.reading)", "Some(last.reading)")],
    ),
    Fault(
        "an emptied store recovers by the last limit",
        test("server", "without_a_trusted_limit_the_quarantine_is_the_configured_one"),
        [
            (
                f"{REDIS}/era_decision.rs",
                "quarantine(RecoveryCause::Emptied, None, bounds, own)",
                "quarantine(RecoveryCause::Emptied, trusted_limit(found, server, false, own), bounds, own)",
            )
        ],
    ),
    Fault(
        "a raised limit is used at once",
        test("redis", "each_change_is_one_that_the_model_allows"),
        [(f"{REDIS}/lua/spans.lua", "math.max(wanted, larger), now + change", "math.max(wanted, larger), now")],
    ),
    Fault(
        "a recovery does not wait for a former master",
        test("redis", "a_promotion_waits_for_the_former_master_and_its_grants"),
        [(f"{REDIS}/lua/era.lua", "if covered and former ~= '' then", "if false then")],
    ),
    Fault(
        "a new era does not continue the tokens of the last one",
        test("redis", "tokens_continue"),
        [(f"{REDIS}/lua/era.lua", "if floor and floor >= no_grants_before * 1000 then", "if false then")],
    ),
    Fault(
        "a broker raises no floor of another broker's era",
        test("redis", "a_broker_raises_the_floor_of_the_era_of_another_broker"),
        [(f"{REDIS}/era_decision.rs", "era.token_floor.max(unrecorded_token(era, known_state))", "era.token_floor")],
    ),
    Fault(
        "a repeat is granted in Q",
        DIFFERENTIAL,
        [(f"{MEMORY}/record.rs", "            context.check_era()?;\n            span?;\n", "            span?;\n")],
    ),
    Fault(
        "a grant is announced before its claim",
        SIMULATION,
        [
            (
                f"{BROKER}/acquire/one_lock.rs",
                "                    provisional: false,\n                    sent,",
                "                    provisional: _,\n                    sent,",
            )
        ],
    ),
    Fault(
        "a renewal shortens",
        MODEL,
        [
            (
                f"{MEMORY}/holders.rs",
                "held.expires_ms = held.expires_ms.max(expires_ms);",
                "held.expires_ms = context.now() + expiry_ms(validity.as_millis() / 2);",
            )
        ],
    ),
    Fault(
        "lock_delay is forgotten",
        MODEL,
        [
            (
                f"{MEMORY}/closure.rs",
                "delay_from_ms.filter(|_| delay_ms > 0)",
                "delay_from_ms.filter(|_| false)",
            )
        ],
    ),
    Fault(
        "the release of an entry frees all",
        MODEL,
        [(f"{MEMORY}/holders.rs", "if held.entries.len() == 1 {", "if held.entries.len() >= 1 {")],
    ),
    Fault("SHARED has the weight 0", MODEL, [("server/src/lock/mode.rs", "Self::Shared => 1,", "Self::Shared => 0,")]),
    Fault(
        "the limit is off by one",
        MODEL,
        [
            (
                f"{MEMORY}/grant.rs",
                "self.holders.used() + weight <= self.limit",
                "self.holders.used() + weight <= self.limit + 1",
            )
        ],
    ),
    Fault(
        "a waiter that is passed over is dropped",
        test("conformance", "waiters_of_a_silent_broker_are_passed_over"),
        [(f"{MEMORY}/queue.rs", "all(|is| is == Presence::Gone)", "all(|is| is != Presence::Live)")],
    ),
    Fault(
        "a broker is silent after 2 s",
        MODEL,
        [("server/src/lock.rs", "BROKER_SILENT_AFTER_MS: u64 = 6_000", "BROKER_SILENT_AFTER_MS: u64 = 2_000")],
    ),
    Fault(
        "a partial release is forgotten",
        MODEL,
        [
            (
                f"{MEMORY}/ended_leases.rs",
                "self.partial_releases.insert(lease_id, until_ms);",
                "let _ = (lease_id, until_ms);",
            )
        ],
    ),
    Fault(
        "AcquireAll rolls back locks of another attempt",
        MODEL,
        [
            (
                f"{MEMORY}/entry.rs",
                "        self.listed.remove(index);\n        Some(",
                "        let _ = index;\n        Some(false && ",
            )
        ],
    ),
    Fault(
        "Close without its epoch",
        test("exclusion", "the_close_of_a_stream_that_a_lease_has_left_unnoticed_frees_nothing"),
        [
            (
                f"{BROKER}/lease_stream/leases.rs",
                "(self.broker.clone(), ExpectedAttachment::Stream(self.id));",
                "(self.broker.clone(), ExpectedAttachment::Any);",
            )
        ],
    ),
    # The violations that a review found.
    Fault("a lock is added again in Q", DIFFERENTIAL, [(f"{MEMORY}/reentry.rs", "context.check_era()?;", "")]),
    Fault(
        "a lease that has lapsed is attached in Q",
        DIFFERENTIAL,
        [(f"{MEMORY}/streams.rs", "if grant.disconnect_grace_ms.is_some() {", "if false {")],
    ),
    Fault(
        "a full list of attempts forgets the oldest",
        test("conformance", "cancelling_nine_repeats_of_a_granted_call"),
        [
            (
                f"{MEMORY}/entry.rs",
                "            self.unlisted.get_or_insert(oldest.broker);\n",
                "            let _ = oldest;\n",
            )
        ],
    ),
    Fault(
        "a lost queue position is not noticed",
        test("redis", "a_waiter_lost_in_a_rollback_is_queued_again"),
        [
            (
                f"{BROKER}/waiters.rs",
                "            self.rejoin();\n",
                "",
            )
        ],
    ),
    Fault(
        "adds at the same time replace each other",
        test("suite", "rust::lock_modes::locks_that_are_added_at_the_same_time_are_all_kept"),
        [
            (
                "client-sdk/rust/src/session/leases.rs",
                "            .extend(others.filter(|grant| !is_requested(params, grant)));",
                "            .extend(others.take(0));",
            )
        ],
    ),
    Fault(
        "a partial release is not recorded",
        test("suite", "rust::lock_modes::a_partial_release_is_remembered_after_thirty_other_holders"),
        [
            (
                f"{REDIS}/lua/release.lua",
                "    if is_part and (e or what == '') then rare().record_partial_release(h) end\n",
                "",
            )
        ],
    ),
    Fault(
        "a late reply to a release removes a newer grant",
        test("exclusion", "a_late_reply_to_a_release_leaves_a_newer_grant_on_the_stream"),
        [
            (
                f"{BROKER}/lease_stream/completions.rs",
                "released.hold_count > 0 || !requested.contains(held)",
                "released.hold_count > 0 || requested.iter().all(|released| released.lock != held.lock)",
            )
        ],
    ),
    Fault(
        "an earlier silence shortens a disconnect grace",
        test("exclusion", "the_grace_begins_at_the_disconnect_also_after_an_earlier_silence"),
        [
            (
                f"{BROKER}/lease_stream/timers.rs",
                "                    lease.grace_state = GraceState::NotRunning;\n",
                "",
            )
        ],
    ),
    Fault(
        "a live client is silent near its max_hold",
        test("exclusion", "a_live_client_is_not_silent_when_max_hold_shortens_its_validity"),
        [
            (
                f"{BROKER}/lease_stream/leases.rs",
                "self.longest_ttl = self.longest_ttl.max(ttl);",
                "self.longest_ttl = ttl;",
            )
        ],
    ),
    Fault(
        "a broker that was stalled ends a grace first",
        test("exclusion", "a_broker_that_was_stalled_reads_the_heartbeats_of_a_graced_lease_first"),
        [
            (
                f"{BROKER}/lease_stream/timers.rs",
                "if ends_at.elapsed() >= SILENCE_CONFIRM_DELAY {",
                "if false {",
            )
        ],
    ),
    Fault(
        "a release with at_least frees the lock at once",
        MODEL,
        [
            (
                f"{MEMORY}/closure.rs",
                "(at_least_ms > 0).then(||",
                "(at_least_ms > 0 && end == HoldEnd::Expired).then(||",
            )
        ],
    ),
    Fault(
        "a released entry closes nothing",
        MODEL,
        [
            (
                f"{MEMORY}/reentry.rs",
                "self.close_after(&held, HoldEnd::EntryReleased, now);",
                "let _ = held;",
            )
        ],
    ),
    Fault(
        "a record is not kept until the end of its closure",
        test("redis", "a_record_is_kept_until_the_end_of_its_closure"),
        [("server/src/store/redis/lua/record.lua", "queue.until_ms, closed_until,", "queue.until_ms,")],
    ),
    Fault(
        "a lease whose end has begun is renewed",
        test("exclusion", "a_lease_whose_end_has_begun_is_not_renewed"),
        [
            (
                f"{BROKER}/lease_stream/leases.rs",
                "\n            && self.grace_state != GraceState::Passed;",
                ";",
            )
        ],
    ),
    Fault(
        "an attempt that is stale stays listed",
        test("exclusion", "a_call_that_stays_on_the_older_stream_of_its_lease_leaves_the_queue"),
        [
            (
                f"{BROKER}/acquire/one_lock.rs",
                "self.may_be_in_store |= match &result {",
                "self.may_be_in_store = match &result {",
            )
        ],
    ),
    Fault(
        "only the newest attempt keeps the position",
        test("conformance", "keeps_its_position_while_one_of_its_brokers_is_alive"),
        [
            (
                f"{MEMORY}/entry.rs",
                "self.listed.iter().rev().map(|attempt| attempt.broker)",
                "self.listed.iter().rev().take(1).map(|attempt| attempt.broker)",
            )
        ],
    ),
    Fault(
        "a slot that did not move after all is served at once",
        test("cluster", "half_moved"),
        [(f"{REDIS}/lua/moving.lua", "redis.call('SET', KEYS[1], era .. '|moving')", "")],
    ),
    Fault(
        "WAIT_TIMEOUT beside a queued attempt",
        test("exclusion", "wait_timeout_beside_a_queued_attempt"),
        [
            (
                f"{BROKER}/acquire/one_lock.rs",
                "            Ok(Cancelled::Kept) => return WaitOutcome::Failed(LockError::StillQueued),\n",
                "",
            ),
            (f"{BROKER}/acquire/one_lock.rs", "Ok(Cancelled::Dequeued |", "Ok(Cancelled::Kept | Cancelled::Dequeued |"),
        ],
    ),
    Fault(
        "a second add blocks the queue",
        test("conformance", "blocks_no_other_waiter"),
        [(f"{MEMORY}/queue.rs", "if !can_fit || holds(waiter.lease_id) {", "if !can_fit {")],
    ),
    Fault(
        "a waiter is dropped by a faster clock",
        test("conformance", "within_the_clock_tolerance_after_its_wait"),
        [
            (
                f"{MEMORY}/queue.rs",
                "self.since_ms + expiry_ms(self.until_ms - self.since_ms) <= now",
                "self.until_ms <= now",
            )
        ],
    ),
    Fault(
        "a grant that cannot be delivered stays",
        test("exclusion", "locks_granted_to_callers_that_are_gone_are_released"),
        [
            (
                f"{BROKER}/acquire.rs",
                "        for attempt in self.1.drain(..) {\n            self.0.schedule(attempt);\n        }\n",
                "        self.1.clear();\n        let _ = &self.0;\n",
            )
        ],
    ),
    Fault(
        "tokens follow the clock",
        MODEL,
        [("server/src/lock/fencing_token.rs", "Self(now_us.max(last + 1))", "Self(now_us.max(last))")],
    ),
]


def main() -> int:
    """Plants the faults whose names contain an argument. Returns 1 if one was not found."""
    chosen = [fault for fault in FAULTS if not sys.argv[1:] or any(part in fault.name for part in sys.argv[1:])]
    if not chosen:
        raise SystemExit(f"no fault has a name with: {' '.join(sys.argv[1:])}")
    known = (
        {line["fault"]: line for line in map(json.loads, RESULTS.read_text().splitlines())} if RESULTS.exists() else {}
    )
    missing = [fault for fault in chosen if fault.name not in known or sys.argv[1:]]
    check_tests(missing)
    for fault in chosen:
        if fault in missing:
            known[fault.name] = run(fault)
            RESULTS.write_text("".join(f"{json.dumps(line)}\n" for line in known.values() if line["found"]))
        line = known[fault.name]
        print(
            f"{line['fault']}: {'found' if line['found'] else 'NOT FOUND'} by {line['finder']}"
            f" {line['seed']}after {line['seconds']:.1f} s: {line['violated']}",
            flush=True,
        )
    lines = [known[fault.name] for fault in chosen]
    missed = [line["fault"] for line in lines if not line["found"]]
    median = statistics.median(line["seconds"] for line in lines)
    print(
        f"{len(lines) - len(missed)} of {len(lines)} faults found, median {median:.1f} s; not found: {missed or 'none'}"
    )
    return bool(missed)


def check_tests(faults: list[Fault]) -> None:
    """Runs the tests that find these faults, without a fault: a test that fails anyway finds nothing."""
    finders = {fault.finder.name: fault.finder for fault in faults if fault.finder.build[0] == "test"}
    for finder in finders.values():
        line = run(Fault("no fault", finder))
        if not line["passed"]:
            raise SystemExit(f"scripts/planted.py: {finder.name} fails without a fault: {line['violated']}")
        print(f"no fault: {finder.name} passes", flush=True)


def run(fault: Fault) -> dict[str, object]:
    """Plants a fault, builds its finder, and runs it."""
    plant(fault)
    finder = fault.finder
    environment = os.environ | {"CARGO_TARGET_DIR": str(BUILD), "CARGO_INCREMENTAL": "1", "RUST_BACKTRACE": "0"}
    if finder.needs_broker:
        programs = ["-p", "leasehold-server", "-p", "leasehold-cli", "-p", "leasehold", "--bins", "--examples"]
        subprocess.run(["cargo", "build", *programs, "--locked", "--quiet"], cwd=COPY, env=environment, check=True)
    build = subprocess.run(
        ["cargo", *finder.build, "--locked", "--message-format", "json"],
        cwd=COPY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    result = {"fault": fault.name, "finder": finder.name, "found": False, "passed": False, "seed": "", "seconds": 0.0}
    if build.returncode:
        messages = (json.loads(line) for line in build.stdout.splitlines())
        errors = [message["message"]["rendered"] for message in messages if message["reason"] == "compiler-message"]
        return result | {"violated": "does not build:\n" + "\n".join(errors)}
    artifacts = (json.loads(line) for line in build.stdout.splitlines())
    programs = [
        artifact["executable"]
        for artifact in artifacts
        if artifact.get("executable") and artifact["target"]["name"] == finder.program
    ]
    began = time.monotonic()
    try:
        ran = subprocess.run(
            [programs[-1], *finder.run],
            cwd=COPY / "tests",
            env=environment,
            capture_output=True,
            text=True,
            timeout=FIND_SECONDS,
            check=False,
        )
        code, output = ran.returncode, ran.stdout + ran.stderr
    except subprocess.TimeoutExpired:
        code, output = 0, ""
    if " 0 passed; 0 failed" in output:
        raise SystemExit(f"scripts/planted.py: {finder.name} has no such test")
    seed = re.search(r"^seed \d+", output, re.MULTILINE)
    violated = re.search(finder.failure, output, re.MULTILINE)
    return result | {
        "found": code != 0 and violated is not None,
        "passed": "test result: ok" in output,
        "seconds": time.monotonic() - began,
        "seed": f"{seed[0]} " if seed else "",
        "violated": violated[1] if violated else output[-300:],
    }


def plant(fault: Fault) -> None:
    """Copies what differs from the source, and replaces the texts of the fault."""
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in files:
        source, copy = ROOT / name, COPY / name
        if source.is_file() and (not copy.exists() or source.read_bytes() != copy.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
            os.utime(copy)
    for file, right, wrong in fault.edits:
        path = COPY / file
        text = path.read_text()
        if text.count(right) != 1:
            raise SystemExit(f"scripts/planted.py: {file} has {text.count(right)} times: {right}")
        path.write_text(text.replace(right, wrong))


if __name__ == "__main__":
    sys.exit(main())
