//! Mutations of the plain cases of the verbs, which are handled apart (prelude.lua).

use super::{Mutant, mutant};

pub const MUTANTS_OF_PLAIN: [Mutant; 45] = [
    mutant(
        "plain acquire: late commands are executed",
        "if now > not_after or watched or terms",
        "if watched or terms",
    ),
    mutant(
        "plain acquire: terms are ignored",
        "or terms ~= '' or",
        "or",
    ),
    mutant(
        "plain acquire: a vote grants the node's own token",
        "or proposed ~= '' or tonumber",
        "or tonumber",
    ),
    mutant(
        "plain acquire: the limit of spans is not read",
        " or span > SPAN_MIN_MS and span > span_limit() then",
        " then",
    ),
    mutant(
        "plain acquire: each limit is exclusive",
        " or tonumber(limit) ~= EXCLUSIVE_WEIGHT\n    or read_era",
        "\n    or read_era",
    ),
    mutant(
        "plain acquire: the era is not read",
        "or read_era() ~= 0 or",
        "or read_era() == nil or",
    ),
    mutant(
        "plain acquire: the floor of tokens is ignored",
        " or token_floor > 0 or span",
        " or span",
    ),
    mutant(
        "plain acquire: tokens follow the clock back",
        "v[2] and tonumber(v[2]) >= now_us or",
        "",
    ),
    mutant(
        "plain acquire: a token is granted twice",
        "tonumber(v[2]) >= now_us or v[3] or",
        "tonumber(v[2]) > now_us or v[3] or",
    ),
    mutant(
        "plain acquire: sums and closures are ignored",
        ">= now_us or v[3] or v[4]",
        ">= now_us or v[4]",
    ),
    mutant(
        "plain acquire: the lock is granted to a second holder",
        "or v[4] and v[4] ~= ''\n",
        "\n",
    ),
    mutant(
        "plain acquire: a new call passes the queue",
        "or v[5] or v[6] or v[7] or v[8] then",
        "or v[6] or v[7] or v[8] then",
    ),
    mutant(
        "plain acquire: tombstones are not read",
        "or v[5] or v[6] or v[7] or v[8] then",
        "or v[5] or v[7] or v[8] then",
    ),
    mutant(
        "plain acquire: a released lease begins anew",
        "or v[5] or v[6] or v[7] or v[8] then",
        "or v[5] or v[6] or v[8] then",
    ),
    mutant(
        "plain acquire: an expired lease begins anew",
        "or v[5] or v[6] or v[7] or v[8] then",
        "or v[5] or v[6] or v[7] then",
    ),
    mutant(
        "plain acquire: the last token is not recorded",
        "SCHEMA, 'f', new_token, 'h:1', lease",
        "SCHEMA, 'h:1', lease",
    ),
    mutant(
        "plain acquire: a lease lives a millisecond longer",
        "int(now + span) .. '|' .. weight .. '|||'",
        "int(now + span + 1) .. '|' .. weight .. '|||'",
    ),
    mutant(
        "plain acquire: the attempt is not recorded",
        ".. '|||' .. attempt .. '@'",
        ".. '|||' .. request .. '@'",
    ),
    mutant(
        "plain acquire: the stream is not recorded",
        "stream = stream == '' and '' or broker_id .. '.' .. stream\n  call",
        "stream = ''\n  call",
    ),
    mutant(
        "plain acquire: the record of a free lock is kept for seconds",
        "call('PEXPIRE', lock, int(span + IDLE_RECORD_TTL_MS))\n  return { 'GRANTED'",
        "call('PEXPIRE', lock, int(span))\n  return { 'GRANTED'",
    ),
    mutant(
        "plain renew: late commands are executed",
        "if now > not_after or is_delivered",
        "if is_delivered",
    ),
    mutant(
        "plain renew: a delivery is not recorded",
        " or is_delivered == '1' then",
        " then",
    ),
    mutant(
        "plain renew: other holders are ignored",
        "not v[3] and not v[5] and of_lease(v[4], lease, token)\n  if not h or v[1] ~= SCHEMA or tonumber(v[2]) > now_us then return nil end\n  local held_ttl",
        "not v[5] and of_lease(v[4], lease, token)\n  if not h or v[1] ~= SCHEMA or tonumber(v[2]) > now_us then return nil end\n  local held_ttl",
    ),
    mutant(
        "plain renew: waiters are ignored",
        "not v[3] and not v[5] and of_lease(v[4], lease, token)\n  if not h or v[1] ~= SCHEMA or tonumber(v[2]) > now_us then return nil end\n  local held_ttl",
        "not v[3] and of_lease(v[4], lease, token)\n  if not h or v[1] ~= SCHEMA or tonumber(v[2]) > now_us then return nil end\n  local held_ttl",
    ),
    mutant(
        "plain cases: the lease is not compared",
        "return text and string.sub(text, 1, #lease + 1) == lease .. '|'\n    and",
        "return text and",
    ),
    mutant(
        "plain cases: the token is not compared",
        "\n    and string.sub(text, TOKEN_AT - 1, TTL_AT - 1) == '|' .. token .. '|' and text",
        "\n    and text",
    ),
    mutant(
        "plain renew: the limit of spans is not read",
        "or span > SPAN_MIN_MS and span > span_limit() or now >= tonumber(expires)\n    or now + span",
        "or now >= tonumber(expires)\n    or now + span",
    ),
    mutant(
        "plain renew: an expired lease is renewed",
        "or now >= tonumber(expires)\n    or now + span",
        "\n    or now + span",
    ),
    mutant(
        "plain renew: a renewal shortens",
        "\n    or now + span < tonumber(expires)",
        "",
    ),
    mutant(
        "plain renew: any stream renews",
        " or is_on_other_stream(stream, via) then\n",
        " then\n",
    ),
    mutant(
        "plain renew: the ttl stays",
        "if ttl == '' then ttl = held_ttl end",
        "ttl = held_ttl",
    ),
    mutant(
        "plain attach: late commands are executed",
        "local h = now <= not_after and",
        "local h =",
    ),
    mutant(
        "plain attach: other holders are ignored",
        "not v[3] and not v[5] and of_lease(v[4], lease, token)\n  if not h or v[1] ~= SCHEMA or tonumber(v[2]) > now_us then return nil end\n  local ttl, since",
        "not v[5] and of_lease(v[4], lease, token)\n  if not h or v[1] ~= SCHEMA or tonumber(v[2]) > now_us then return nil end\n  local ttl, since",
    ),
    mutant(
        "plain attach: the limit of spans is not read",
        "or span > SPAN_MIN_MS and span > span_limit() or now >= tonumber(expires)\n    or from",
        "or now >= tonumber(expires)\n    or from",
    ),
    mutant(
        "plain attach: an older stream takes the lease",
        ">= tonumber(string.match(stream, '%d+$')))",
        "< 0)",
    ),
    mutant(
        "plain attach: a move within a stream is reported",
        "from ~= '' and stream_of(from) ~= stream_of(requested)",
        "from ~= ''",
    ),
    mutant(
        "plain release: a part is all",
        "if watched or what ~= '' or",
        "if watched or",
    ),
    mutant(
        "plain release: nobody is notified",
        " or notify == '1' then return nil end",
        " then return nil end",
    ),
    mutant(
        "plain release: the queue waits",
        "not v[3] and not v[5] and of_lease(v[4], lease, token)\n  if not h or v[1] ~= SCHEMA or tonumber(v[2]) > now_us then return nil end\n  local expires, stream",
        "not v[3] and of_lease(v[4], lease, token)\n  if not h or v[1] ~= SCHEMA or tonumber(v[2]) > now_us then return nil end\n  local expires, stream",
    ),
    mutant(
        "plain release: an expired lease is released",
        "if not expires or now >= tonumber(expires) or is_on",
        "if not expires or is_on",
    ),
    mutant(
        "plain release: any stream releases",
        " or is_on_other_stream(stream, via) then return nil end\n  local first",
        " then return nil end\n  local first",
    ),
    mutant(
        "plain release: the end of the lease is not recorded",
        "'z:' .. lease, last .. '|' .. released_at",
        "'z:' .. token, last .. '|' .. released_at",
    ),
    mutant(
        "plain release: old ends are kept",
        "if last % 8 == 0 then\n    if partial",
        "if last == 0 then\n    if partial",
    ),
    mutant(
        "plain release: old ends are only counted",
        "if names[1] then call('HDEL', lock, unpack(names)) end",
        "",
    ),
    mutant(
        "plain release: old partial releases are kept",
        "    if partial ~= '' then return nil end\n",
        "",
    ),
];
