//! Mutations of the scripts by one mistake each, which the sequences must detect.

pub mod plain;
pub mod revoking;
pub mod several;
pub mod spans;
pub mod voting;

/// A mutation: a text of the scripts, and its replacement in every script.
pub struct Mutant {
    /// Name of the mistake.
    pub name: &'static str,
    /// The text of the scripts that is replaced.
    pub right: &'static str,
    pub wrong: &'static str,
}

const fn mutant(name: &'static str, right: &'static str, wrong: &'static str) -> Mutant {
    Mutant { name, right, wrong }
}

pub const MUTANTS: [Mutant; 118] = [
    mutant(
        "a release does not compare the lease",
        "local h = load_lease(lease)\n  if h and h.token == token and is_on_other_stream",
        "load_lease(lease)\n  local h = holder_at(1)\n  token = h and h.token\n  if h and h.token == token and is_on_other_stream",
    ),
    mutant(
        "a renewal does not compare the token",
        "if not h or h.token ~= token or is_closed then",
        "if not h or is_closed then",
    ),
    mutant(
        "an older token of a lease that has the lock again is not found",
        "return is_older and was_released",
        "return false and was_released",
    ),
    mutant(
        "any other token of a lease that has the lock again is released",
        "local is_older = tonumber(token) < tonumber(h.token)",
        "local is_older = token ~= h.token",
    ),
    mutant(
        "an entry that was lost with data does not close the lock",
        "if what ~= '' and rare().has_lost_data_since(h.since) then",
        "if false then",
    ),
    mutant(
        "a holder may share a lock without an entry that was lost with data",
        "if keeps_weight then e.weight = h.weight end",
        "",
    ),
    mutant(
        "each release of an entry closes the lock",
        "if what ~= '' and rare().has_lost_data_since(h.since) then",
        "if what ~= '' then",
    ),
    mutant(
        "tokens follow the clock back",
        "last_token = math.max(last_token + 1, now_us, token_floor + 1)",
        "last_token = math.max(now_us, token_floor + 1)",
    ),
    mutant(
        "the floor of tokens is ignored",
        "now_us, token_floor + 1)",
        "now_us)",
    ),
    mutant(
        "a token is equal to the floor",
        "now_us, token_floor + 1)",
        "now_us, token_floor)",
    ),
    mutant(
        "tokens follow the floor back",
        "math.max(last_token + 1, now_us, token_floor + 1)",
        "math.max(now_us, token_floor > 0 and token_floor + 1 or last_token + 1)",
    ),
    mutant(
        "a new call passes the queue",
        "if not blocked and fits(weight)",
        "if fits(weight)",
    ),
    mutant(
        "the era is not compared",
        "grants_from_ms = id == era_id and",
        "grants_from_ms = id and",
    ),
    mutant(
        "tombstones are not read",
        "if tombstones and rare().has_tombstone(attempt) then return",
        "if false then return",
    ),
    mutant(
        "a claim leaves the grant provisional",
        "    h.position = nil\n",
        "",
    ),
    mutant(
        "an unclaimed waiter falls back to the tail",
        "write_waiter(h.position, w)\n  remove(h)",
        "dequeue(h.position, w.request) enqueue(w)\n  remove(h)",
    ),
    mutant(
        "a lease lives a millisecond longer",
        "if expires and expires > now then\n      earliest",
        "if expires and expires >= now then\n      earliest",
    ),
    mutant(
        "a cancel rolls back all attempts",
        "if left ~= '' then",
        "if false then",
    ),
    mutant(
        "silence is not noticed",
        "touched_ms and silent <= BROKER_SILENT_AFTER_MS and",
        "touched_ms and",
    ),
    mutant(
        "waiters of silent brokers are never removed",
        "silent > 2 * BROKER_SILENT_AFTER_MS",
        "false",
    ),
    mutant(
        "a stall counts as silence",
        "(gap > TOUCH_STALL_MS and 0 or gap)",
        "gap",
    ),
    mutant(
        "a renewal shortens",
        "math.max(h.expires, now + expiry(h.validity))",
        "now + expiry(h.validity)",
    ),
    mutant(
        "late commands are executed",
        "if now > not_after then",
        "if false then",
    ),
    mutant(
        "a waiter belongs to its first attempt's broker",
        "return string.sub(attempts, -16)",
        "return string.sub(attempts, 15, 30)",
    ),
    mutant(
        "the queue takes one waiter too many",
        "queue.n >= tonumber(queue_max)",
        "queue.n > tonumber(queue_max)",
    ),
    mutant(
        "an unclaimed waiter is not passed over",
        " and touched_ms >= tonumber(passed)",
        "",
    ),
    mutant(
        "a hand-off to another broker is final",
        "    h = grant(w, position)",
        "    dequeue(position, w.request) h = grant(w)",
    ),
    mutant(
        "arguments are not compared",
        "if waits.lease ~= lease or waits.arguments ~= arguments then",
        "if waits.lease ~= lease then",
    ),
    mutant(
        "a holder weighs nothing",
        "all.n + 1, all.used + h.weight",
        "all.n + 1, all.used",
    ),
    mutant(
        "a holder's weight stays when it leaves",
        "all.n - 1, all.used - h.weight",
        "all.n - 1, all.used",
    ),
    mutant(
        "another limit is accepted",
        "if has_other_limit(limit) or tonumber(weight) > holders.limit then",
        "if tonumber(weight) > holders.limit then",
    ),
    mutant(
        "one more than the limit fits",
        "holders.used + weight <= holders.limit\nend",
        "holders.used + weight <= holders.limit + 1\nend",
    ),
    mutant(
        "one holder too many",
        "holders.n < HOLDERS_MAX and",
        "holders.n <= HOLDERS_MAX and",
    ),
    mutant(
        "light calls pass a heavy one",
        "until not w or blocked or more == 1",
        "    if blocked then position = position + 1 end\n  until not w or not fits(1) or more == 1",
    ),
    mutant(
        "one waiter enters at a time",
        "until not w or blocked or more == 1",
        "  until true",
    ),
    mutant(
        "a lease above the first slot is not found",
        "changed['l:' .. h.lease] = h.slot",
        "known['l:' .. h.lease] = h.slot",
    ),
    mutant(
        "the first expiry of several is forgotten",
        "math.min(all.earliest, h.expires)",
        "math.max(all.earliest, h.expires)",
    ),
    mutant(
        "a promised waiter is granted again",
        "if w and not w.slot then",
        "if w then",
    ),
    mutant(
        "a lapsed waiter stays promised",
        "w.attempts, w.passed, w.slot = h.attempts, h.expires, nil",
        "w.attempts, w.passed = h.attempts, h.expires",
    ),
    mutant(
        "a slot is taken twice",
        "    all.spare = string.sub(all.spare, 1, -#slot - 2)\n",
        "",
    ),
    mutant(
        "any limit is accepted for an exclusive lock",
        "(limit > 0 or in_use == EXCLUSIVE_WEIGHT)",
        "limit > 0",
    ),
    mutant(
        "max_hold is forgotten",
        "if max_hold == 0 then return ttl end",
        "if true then return ttl end",
    ),
    mutant(
        "a lock_delay counts from its notice",
        "receive('DELAY', delay_from + delay, h.owner)",
        "receive('DELAY', now + delay, h.owner)",
    ),
    mutant(
        "the last closure counts",
        "if until_ms <= math.max(now, closed_until) then return end",
        "if until_ms <= now then return end",
    ),
    mutant(
        "a closure of the past counts",
        "if until_ms <= math.max(now, closed_until) then return end",
        "if until_ms <= closed_until then return end",
    ),
    mutant(
        "a release does not start the at_least",
        "rare().close_after(h, has_flag(h, DELAYS_ON_RELEASE) and now)",
        "if has_flag(h, DELAYS_ON_RELEASE) then rare().close_after(h, now) end",
    ),
    mutant(
        "each release starts the lock_delay",
        "rare().close_after(h, has_flag(h, DELAYS_ON_RELEASE) and now)",
        "rare().close_after(h, now)",
    ),
    mutant(
        "an at_least counts from the end of the hold",
        "receive('ATLEAST', h.since + at_least, h.owner)",
        "receive('ATLEAST', now + at_least, h.owner)",
    ),
    mutant(
        "an expiry does not start the at_least",
        "close_after(h, h.expires)\n  free_holder",
        "if not string.match(h.terms, '^%d+,0,') then close_after(h, h.expires) end\n  free_holder",
    ),
    mutant(
        "a grant keeps the closure of the grant before",
        "if closed_until > 0 then closed_until, changed.c = 0, false end",
        "",
    ),
    mutant(
        "an expired holder that is still recorded closes nothing",
        "if until_ms > latest then closure, latest",
        "if false then closure, latest",
    ),
    mutant(
        "a shorter closure of an expired holder is reported",
        "if until_ms > latest then closure, latest",
        "if true then closure, latest",
    ),
    mutant(
        "an operator opens a lock only in the reply",
        "    closed_until, changed.c = 0, false\n  end\n  advance()",
        "  end\n  advance()",
    ),
    mutant(
        "an opened lock is granted by the next command",
        "closed_until, changed.c = 0, false\n  end\n  advance()",
        "closed_until, changed.c = 0, false\n  end",
    ),
    mutant(
        "a lock is closed in an unknown era",
        "if ms_until_grants() < 0 then return era_rejection() end\n  expire()\n  if until_ms",
        "expire()\n  if until_ms",
    ),
    mutant(
        "a late command closes a lock",
        "local function set_closure(until_ms, operator, notify)\n  if now > not_after then return { 'LATE', now } end",
        "local function set_closure(until_ms, operator, notify)",
    ),
    mutant(
        "a lock that was closed but never used is unknown",
        "if last_token == 0 and queue.n == 0 and closed_until == 0 and",
        "if last_token == 0 and queue.n == 0 and",
    ),
    mutant(
        "a lock with a set limit that was never used is unknown",
        "and closed_until == 0 and set_limit == 0 then",
        "and closed_until == 0 then",
    ),
    mutant(
        "each holder uses one permit",
        "count, used = count + 1, used + h.weight",
        "count, used = count + 1, used + 1",
    ),
    mutant(
        "a hand-off has the limit of an exclusive lock",
        "= w.request, broker, h.token, holders.limit",
        "= w.request, broker, h.token, EXCLUSIVE_WEIGHT",
    ),
    mutant(
        "a released entry closes nothing",
        "      rare().close_after(h, nil)\n",
        "",
    ),
    mutant(
        "a closed lock is granted",
        "return closed_until <= now and holders.n",
        "return holders.n",
    ),
    mutant(
        "a caller's limit counts beside a set one",
        "if set_limit > 0 then return limit == EXCLUSIVE_WEIGHT end\n",
        "",
    ),
    mutant(
        "a waiter that can never fit blocks the queue",
        "broker and can_fit and not",
        "broker and not",
    ),
    mutant(
        "a set limit is forgotten",
        "holders.limit, set_limit = limit, limit",
        "holders.limit = limit",
    ),
    mutant(
        "a removed limit stays",
        "previous, set_limit = set_limit, 0",
        "previous = set_limit",
    ),
    mutant(
        "a released entry comes back",
        "if tombstones and rare().has_tombstone(request)\n",
        "if false\n",
    ),
    mutant(
        "an entry takes more than is held",
        "if tonumber(e.weight) > tonumber(h.weight) then return 'UPGRADE' end\n",
        "",
    ),
    mutant(
        "a stale token enters",
        "(under == '+' or under == h.token)",
        "true",
    ),
    mutant(
        "entries without end",
        "if hold_count(h) >= ENTRIES_MAX then",
        "if false then",
    ),
    mutant(
        "an entry is not found again",
        "changed['r:' .. e.request] = '@' .. h.slot",
        "known['r:' .. e.request] = '@' .. h.slot",
    ),
    mutant(
        "an entry adds its ttl up",
        "changed['r:' .. e.request] = '@' .. h.slot\n",
        "changed['r:' .. e.request] = '@' .. h.slot\n  h.expires = h.expires + h.ttl\n",
    ),
    mutant(
        "the first of the entries left counts",
        "if tonumber(weight) > most then",
        "if not strongest then",
    ),
    mutant(
        "a downgrade keeps its weight",
        "    holders.used = holders.used - h.weight + e.weight\n",
        "",
    ),
    mutant(
        "leaving an entry frees the lock",
        "elseif e and h.entries ~= '' then",
        "elseif false then",
    ),
    mutant(
        "cancelling an entry frees the lock",
        "if h and h.entries ~= '' then\n    remove_entry(h, e)\n  else",
        "if false then\n  else",
    ),
    mutant(
        "a released entry leaves no tombstone",
        "if what ~= '' then rare().add_tombstone(what) end\n",
        "",
    ),
    mutant(
        "a released add leaves no tombstone",
        "if h.entries ~= '' or has_flag(h, ADDED) then",
        "if h.entries ~= '' then",
    ),
    mutant(
        "the call that made a lease enters it",
        "under == '' and (h or field('z:' .. lease) and rare().is_newly_released(lease))",
        "under == '' and field('z:' .. lease) and rare().is_newly_released(lease)",
    ),
    mutant(
        "a lease is granted beside itself",
        "if broker and can_fit and not holder_of(w.lease) then",
        "if broker and can_fit then",
    ),
    mutant(
        "a broker is not notified that one of its calls may enter",
        "rejoin = rejoin or must_repeat",
        "",
    ),
    mutant(
        "a lease is called live while grants are closed",
        "if ms_until_grants() ~= 0 then return era_rejection() end\n      return reply('LIVE'",
        "return reply('LIVE'",
    ),
    mutant(
        "a part of a lease is forgotten at once",
        "h.lease, now + expiry(h.ttl))",
        "h.lease, now)",
    ),
    mutant(
        "a part is remembered like the whole",
        "if is_part and (e or what == '') then",
        "if false then",
    ),
    mutant(
        "a release is forgotten while other entries are left",
        "if is_part and (e or what == '') then",
        "if is_part and (not e and what == '' or e and h.entries == '') then",
    ),
    mutant(
        "a queued call does not enter what its lease holds",
        "if enters and not (waits and ms_until_grants() ~= 0) then",
        "if enters and not waits then",
    ),
    mutant(
        "a call that enters keeps its queue position",
        "      waiting().dequeue(position, request)\n      w.attempts",
        "      w.attempts",
    ),
    mutant(
        "a call that enters forgets its older attempts",
        "w.attempts = rare().add_attempt(rare().attempts_on(stream, waits), attempt)",
        "w.attempts = w.attempts",
    ),
    mutant(
        "an add passes a promise to its own lease",
        "advance() or holder_of(lease)\n",
        "advance()\n",
    ),
    mutant(
        "a lock that expired is added again",
        "or field('e:' .. lease) and rare().was_expired(lease)\n    or under == ''",
        "or under == ''",
    ),
    mutant(
        "no caller is too late to enter",
        "  if not effective_ttl(h) then return 'ENDED' end\n  if hold",
        "  if hold",
    ),
    mutant(
        "entries outlive their holder",
        "for request in string.gmatch(h.entries, '(%w+):%w+:%d+:') do changed['r:' .. request] = false end",
        "local gone",
    ),
    mutant(
        "an older attachment moves a lease",
        "return newer and requested or nil\n",
        "return requested\n",
    ),
    mutant(
        "a unary repeat takes a lease off its stream",
        "if requested == '' then return nil end",
        "if requested == '' then return requested end",
    ),
    mutant(
        "a renewal from elsewhere extends",
        "if is_on_other_stream(h.stream, via) then return reply('ELSEWHERE')",
        "if false then return reply('ELSEWHERE')",
    ),
    mutant(
        "a release from elsewhere counts",
        "and is_on_other_stream(h.stream, via) then\n    tag",
        "and false then\n    tag",
    ),
    mutant(
        "a move leaves the lease where it was",
        "  h.stream = requested\n",
        "",
    ),
    mutant(
        "no caller is notified of a move",
        "  moved = h.lease .. '.' .. from\n",
        "",
    ),
    mutant(
        "a lease is entered from elsewhere",
        "  if stream_of(h.stream) ~= stream_of(stream) then return reply('STALE') end\n",
        "",
    ),
    mutant(
        "a lapse is dated by its expiry",
        "tag, h.expires = 'NOW', now",
        "tag = 'NOW'",
    ),
    mutant(
        "a promise is attached",
        "if not h or h.token ~= token or h.position then",
        "if not h or h.token ~= token then",
    ),
    mutant(
        "a grant forgets its stream",
        "entries = '', stream = w.stream",
        "entries = '', stream = ''",
    ),
    mutant(
        "a waiter stays on its old stream",
        "math.max(w.until_ms, again.until_ms), stream",
        "math.max(w.until_ms, again.until_ms), w.stream",
    ),
    mutant(
        "a repeat moves no lease",
        "    rare().attach_to(h, requested)\n    rare().set_attempts",
        "    rare().set_attempts",
    ),
    mutant(
        "every waiter is the last of the queue",
        "position == queue.tail and queue.n or 0",
        "queue.n",
    ),
    mutant(
        "a waiter is shown without its place",
        "waiters[#waiters + 1] = { position, ",
        "waiters[#waiters + 1] = { #waiters + 1, ",
    ),
    mutant(
        "a grant forgets its disconnect_grace",
        "string.match(h.terms, '(%d*),%d$') or ''",
        "''",
    ),
    mutant(
        "a move is reported without its number",
        "  local from = h.stream\n",
        "  local from = stream_of(h.stream) .. '.1'\n",
    ),
    mutant(
        "a repeat is granted while grants are closed",
        "return reply('ENDED') end\n    if ms_until_grants() ~= 0 then",
        "return reply('ENDED') end\n    if false then",
    ),
    mutant(
        "a lease enters while grants are closed",
        "return reply('STALE') end\n    if ms_until_grants() ~= 0 then",
        "return reply('STALE') end\n    if false then",
    ),
    mutant(
        "a hand-off is claimed while grants are closed",
        "is_closed = h and h.position and ms_until_grants() ~= 0",
        "is_closed = false",
    ),
    mutant(
        "a repeat claims a hand-off while grants are closed",
        "if h and h.position and ms_until_grants() ~= 0 then\n    rare().lapse(h)\n    h = nil",
        "if false then\n    rare().lapse(h)\n    h = nil",
    ),
    mutant(
        "a lease that may have lapsed is attached while grants are closed",
        "grace_of(h) ~= '' and ms_until_grants() ~= 0",
        "false",
    ),
    mutant(
        "a holder forgets its oldest attempt",
        "attempts = UNLISTED .. string.sub(attempts, 14)",
        "attempts = string.sub(attempts, ATTEMPT_LEN + 1)",
    ),
    mutant(
        "a waiter takes any number of attempts",
        "if #left == ATTEMPTS_MAX then return nil end",
        "",
    ),
    mutant(
        "only the broker of the newest attempt counts",
        "  local chosen, left, all_gone = nil",
        "  do return nil, select(2, broker_liveness(newest, w.passed)) end\n  local chosen, left, all_gone = nil",
    ),
    mutant(
        "attempts of a stream that a call has left stay",
        "(w.stream == '' or stream_of(w.stream) == stream_of(requested)) and w.attempts or ''",
        "w.attempts",
    ),
    mutant(
        "an attempt that is not listed hides the others of its call",
        "(e or w) and 'KEPT' or 'UNKNOWN'",
        "'UNKNOWN'",
    ),
];
