"""What the names of columns say: whether they are ids, quantities, codes or times."""

from __future__ import annotations

import re

_INDEX = re.compile(r"|__index_level_[0-9]+__|Unnamed: [0-9]+|_c0|rownames|row\.names", re.I)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_THINGS = (
    "user item ad movie film product customer client session visitor device campaign creative site "
    "page order category store shop account member channel doc query video song track artist "
    "author brand seller merchant region city zone publisher advertiser placement banner request "
    "impression event employee person patient loan listing post article content media group team"
)
_IDS = _set(
    "id ids uid uids uuid guid key hash sku asin isbn ip zip zipcode postcode postal code pid fk pk"
) | {f"{thing}{end}" for thing in _THINGS.split() for end in ("id", "ids")}
_QUANTITIES = _set(
    "age price cost amount amt count cnt num n total sum qty quantity avg mean median min max "
    "rate ratio share pct percent percentage score duration seconds secs sec ms hours minutes mins "
    "days weeks months years length len size width height weight distance dist lat latitude lon "
    "lng longitude year balance income salary revenue sales spend spent clicks views visits "
    "impressions likes votes stars rating temperature temp humidity speed delay rank position pos "
    "depth bid budget discount points steps calories fare charge charges tenure words chars bytes "
    "bedrooms bathrooms rooms sqft area elevation altitude pressure level limit payment tax tip "
    "fee fees debt loan volume capacity growth profit margin ctr cpc cpm frequency recency "
    "population"
)
_CODES = _set(
    "type category cat class cluster segment group status state region district zone hour weekday "
    "dow month wday mday day quarter channel model brand grade tier store shop site slot bucket "
    "flag country version carrier os browser device gender sex education marital occupation genre "
    "lang language platform source medium code department dept section line plan product item "
    "user film movie customer campaign creative ad city job vendor merchant seller"
)
_TIMES = _set(
    "time ts timestamp datetime date day dt at when epoch created updated occurred logged utc "
    "hour ms us millis unix event visited clicked_at"
)
_BEST_TIMES = (
    ("timestamp", "event_time", "event_timestamp", "eventtime", "event_ts", "ts", "time"),
    ("datetime", "date_time", "event_date", "date", "dt", "day", "logged_at", "created_at"),
)
_NO_TIMES = _set("birth born dob birthday signup joined registered expiry expires end updated")
_VERSIONS = _set("version versions ver release build")


NO_TIME = 3  # `time_rank` of what is no time of the examples, such as a date of birth


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _last(name: str) -> str:
    """The last word that is no number: `id` of `user_id_2`."""
    words = [word for word in _words(name) if not word.isdigit()]
    return words[-1] if words else ""


def is_id(name: str) -> bool:
    """Whether a column with this name holds ids, like `user_id`, `userId`, `id2` and `zip`."""
    return _words(name)[:1] == ["id"] or _last(name) in _IDS


def is_quantity(name: str) -> bool:
    """Whether a column with this name holds numbers, like `age`, `num_clicks` and `price_usd`."""
    if is_id(name) or is_row_number(name):
        return False
    return any(word in _QUANTITIES for word in _words(name))


def is_code(name: str) -> bool:
    """Whether integers in a column with this name are codes, as in `hour` and `region`."""
    return _last(name) in _CODES


def is_version(name: str) -> bool:
    """Whether a column with this name holds versions, like `os_version`; `1.1` is not `1.10`."""
    return _last(name) in _VERSIONS


def is_row_number(name: str) -> bool:
    """Whether a column with this name is the index that pandas and Spark write."""
    return _INDEX.fullmatch(name.strip()) is not None


def is_time(name: str) -> bool:
    """Whether a column with this name holds times, like `timestamp` and `created_at`."""
    return any(word in _TIMES for word in _words(name))


def time_rank(name: str) -> int:
    """How unlikely it is that a column of times is the time of the examples: 0 to 3.

    With 3 it is certainly another time, such as a date of birth.
    """
    words = _words(name)
    plain = "_".join(words)
    for rank, names in enumerate(_BEST_TIMES):
        if plain in names or "".join(words) in names:
            return rank
    return NO_TIME if _NO_TIMES & {*words} else 2
