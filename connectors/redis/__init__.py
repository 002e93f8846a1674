"""Write to Redis: one entry per key, as JSON text or as a hash, and its guard in a second key. See ``connectors.redis.sink``."""

from connectors.redis.settings import RedisOptions, RedisSettings
from connectors.redis.sink import RedisSink
from connectors.registry import require

__all__ = ["RedisOptions", "RedisSettings", "RedisSink"]

require("redis")
