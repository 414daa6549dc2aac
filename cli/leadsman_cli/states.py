"""Where fleet state is carried by a Redis or Valkey: what it takes to reach it."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leadsman_fleet.redis_log import RedisLog

REDIS: Final = ("redis://", "rediss://")


def redis_log(url: str, pool: str) -> "RedisLog":
    """Make a pool's log of a URL. Raises OSError where that cannot be; nothing is asked yet."""
    try:
        from leadsman_fleet.redis_log import Names, RedisLog, connected
    except ModuleNotFoundError as error:
        raise OSError("fleet state by Redis needs leadsman[redis] to be installed") from error
    try:
        return RedisLog(redis=connected(url), names=Names(pool=pool))
    except ValueError as error:
        raise OSError(f"the URL of Redis is none: {error}") from error
