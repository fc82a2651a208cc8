"""The Lua of a Redis state. A script runs alone in the server: what it checks stays so.

Many keys or texts travel as one argument, each ended by a newline: thousands of arguments cost
more than the rest of a write. Keys and records are JSON without control characters, so that no
newline stands in them. Every script answers a list that begins with a word.

So the record keys of the string layout are not among a script's declared keys; they have the
hash tag of one that is. Redis and its cluster take that; a server that insists on declared keys
(Dragonfly's default, some proxies) needs the hash layout, whose two keys are declared.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

from waterspout.state._base import StateKind

__all__ = ["CREATE", "MOVE", "Script", "combine", "compare_and_put", "put"]


@dataclass(frozen=True)
class Script:
    """A script and the name under which a server that has seen it knows it."""

    text: str

    @property
    def sha(self) -> str:
        """The name: Redis's own, not a matter of security."""
        return _sha(self.text)


@cache
def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


# KEYS[1] is the header of the slot. ARGV[1] says what state it must be of, ARGV[2] whose write
# this is; empty for a write outside of any batch.
_GUARD = """
local header = redis.call('HMGET', KEYS[1], 'state', 'fence')
if header[1] ~= ARGV[1] or (ARGV[2] ~= '' and header[2] ~= ARGV[2]) then
  return {'refused', redis.call('HGETALL', KEYS[1])}
end
local find, sub, byte = string.find, string.sub, string.byte
local match, format = string.match, string.format
local function lines(all)
  local found, n, from = {}, 0, 1
  while true do
    local to = find(all, '\\n', from, true)
    if not to then return found, n end
    n = n + 1
    found[n] = sub(all, from, to - 1)
    from = to + 1
  end
end
"""

# Slices, because a call takes some thousand arguments at most: they go over the Lua stack.
_SLICE = 500
_READ = {
    "string": "redis.call('MGET', unpack(keys, i, last))",
    "hash": "redis.call('HMGET', KEYS[2], unpack(keys, i, last))",
}
_WRITE = {
    ("string", False): "redis.call('MSET', unpack(out, i, last))",
    ("string", True): (
        "for j = i, last, 2 do redis.call('SET', out[j], out[j + 1], 'PX', ARGV[3]) end"
    ),
    ("hash", False): "redis.call('HSET', KEYS[2], unpack(out, i, last))",
}


def _write_all(layout: str, expires: bool) -> str:
    return f"""
for i = 1, o, {2 * _SLICE} do
  local last = math.min(i + {2 * _SLICE - 1}, o)
  {_WRITE[layout, expires]}
end
"""


@cache
def put(layout: str, *, expires: bool) -> Script:
    """Store texts under keys. ARGV[3]: milliseconds to live, [4] keys, [5] texts."""
    return Script(
        f"""{_GUARD}
local keys, n = lines(ARGV[4])
local texts = lines(ARGV[5])
local out, o = {{}}, 2 * n
for k = 1, n do
  out[2 * k - 1] = keys[k]
  out[2 * k] = texts[k]
end
{_write_all(layout, expires)}
return {{'ok'}}
"""
    )


@cache
def compare_and_put(layout: str, *, expires: bool) -> Script:
    """Store each text whose key has the text that was read; answer a digit per key.

    ARGV[3] to [5] as in `put`, [6] the texts that were read, empty where there was none.
    """
    return Script(
        f"""{_GUARD}
local keys, n = lines(ARGV[4])
local texts, read = lines(ARGV[5]), lines(ARGV[6])
local out, o, same = {{}}, 0, {{}}
for i = 1, n, {_SLICE} do
  local last = math.min(i + {_SLICE - 1}, n)
  local found = {_READ[layout]}
  for k = i, last do
    if (found[k - i + 1] or '') == read[k] then
      out[o + 1] = keys[k]
      out[o + 2] = texts[k]
      o = o + 2
      same[k] = '1'
    else
      same[k] = '0'
    end
  end
end
{_write_all(layout, expires)}
return {{'ok', table.concat(same)}}
"""
    )


# Each takes `text`, and sets `value` to the text of the number to start from ('null' for none),
# or leaves it nil for Python to look at; `skip` if there is nothing to do; `newer` to a later txid.
_RULES = {
    StateKind.OPAQUE: """
    local t, v = match(text, '^%[(%d+),%d+,(%-?%d+),')
    if not t then
      t, v = match(text, '^%[(%d+),%d+,(null),')
    end
    if t then
      if t == txid or (lost[t] and lost[t] ~= match(text, '^%[%d+,(%d+)')) then
        v = match(text, '^%[%d+,%d+,[^,]+,(%-?%d+)%]$')
          or match(text, '^%[%d+,%d+,[^,]+,(null)%]$')
      elseif t + 0 > mine then
        newer = t
      elseif byte(text, -1) ~= 93 then
        v = nil  -- cut off before its closing bracket
      end
      value = v
    end
""",
    StateKind.TRANSACTIONAL: """
    local t, v = match(text, '^%[(%d+),%d+,(%-?%d+)%]$')
    if not t then
      t, v = match(text, '^%[(%d+),%d+,(null)%]$')
    end
    if t == txid then
      skip = true
    elseif t and t + 0 > mine then
      newer = t
    else
      value = v
    end
""",
    StateKind.NON_TRANSACTIONAL: """
    value = match(text, '^%[(%-?%d+)%]$') or match(text, '^%[(null)%]$')
""",
}
# The record of a key that has a value (%d is the new one, %s the old one's text), and of one
# that has none.
_FORMATS = {
    StateKind.OPAQUE: ("'[' .. txid .. ',' .. attempt .. ',%d,%s]'", "',%d,null]'"),
    StateKind.TRANSACTIONAL: ("'[' .. txid .. ',' .. attempt .. ',%d]'", "',%d]'"),
    StateKind.NON_TRANSACTIONAL: ("'[%d]'", None),
}
_MERGES = {
    "sum": "old + amount",
    "min": "amount < old and amount or old",
    "max": "amount > old and amount or old",
}


@cache
def combine(layout: str, kind: StateKind, merge: str, *, expires: bool) -> Script:
    """Combine a number into each key's record by the rule of the kind.

    ARGV[3] and [4] as in `put`, [5] a JSON list of numbers, [6] txid, [7] attempt. Answers which
    keys it left out: numbers beyond 2^53 would be rounded here, and what is no number is not for
    Lua to judge. Nothing is written if a record is newer than the batch.
    """
    known, first = _FORMATS[kind]
    first = known if first is None else f"'[' .. txid .. ',' .. attempt .. {first}"
    return Script(
        f"""{_GUARD}
local keys, n = lines(ARGV[4])
local amounts, txid, attempt = cjson.decode(ARGV[5]), ARGV[6], ARGV[7]
local mine, most = tonumber(txid), 9007199254740992
local known, first = {known}, {first}
local lost = {{}}
local head = redis.call('HGET', KEYS[1], 'head')
if {"true" if kind is StateKind.OPAQUE else "false"} and head and head ~= '' then
  for _, pair in ipairs(cjson.decode(head).resolved) do
    lost[format('%d', pair[1])] = format('%d', pair[2])
  end
end
local out, o, left = {{}}, 0, {{}}
for i = 1, n, {_SLICE} do
  local last = math.min(i + {_SLICE - 1}, n)
  local found = {_READ[layout]}
  for k = i, last do
    local text, amount, new, skip = found[k - i + 1], amounts[k], nil, false
    local value, newer = 'null', nil
    if text then
      value = nil
      {_RULES[kind]}
      if newer then return {{'newer', k - 1, newer}} end
    end
    if value == 'null' then
      new = format(first, amount)
    elseif value then
      local old = value + 0
      local both = {_MERGES[merge]}
      if old < most and old > -most and both < most and both > -most then
        new = format(known, both, value)
      end
    end
    if new then
      out[o + 1] = keys[k]
      out[o + 2] = new
      o = o + 2
    elseif not skip then
      left[#left + 1] = k - 1
    end
  end
end
{_write_all(layout, expires)}
return {{'ok', left}}
"""
    )


# ARGV from the fourth on: the fields of the new header.
CREATE = Script(
    """
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], unpack(ARGV))
end
return {'ok', redis.call('HGETALL', KEYS[1])}
"""
)

# ARGV[1]: the state, [2] the head that is expected, empty for none, then the new fields.
MOVE = Script(
    """
local now = redis.call('HMGET', KEYS[1], 'state', 'head')
if now[1] ~= ARGV[1] or now[2] ~= ARGV[2] then
  return {'refused', redis.call('HGETALL', KEYS[1])}
end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
return {'ok'}
"""
)
