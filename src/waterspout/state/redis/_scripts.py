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

__all__ = ["CREATE", "MOVE", "Script", "compare_and_put", "put"]


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
if ARGV[2] == '' then
  redis.call('HINCRBY', KEYS[1], 'amended', 1)  -- for a batch that has read what changes here
end
local find, sub = string.find, string.sub
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
