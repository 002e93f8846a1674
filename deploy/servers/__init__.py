"""Real servers for the demo, the tests and the benchmarks: started here, gone afterwards.

    from deploy.servers import Elasticsearch, Redis

    with Elasticsearch.start() as es, Redis.start(config={"maxmemory": "64mb"}) as redis:
        es.url      # http://127.0.0.1:<free port>
        redis.url   # redis://127.0.0.1:<free port>/0

        es.stop()                        # down, its port and data are kept
        es.restart()                     # up again (stopped first if need be), same port, same data
        redis.restart(keep_data=False)   # up again, empty
        es.kill()                        # SIGKILL, as a crash does; restart() brings it back
        es.pause(); es.resume()          # hangs, takes connections but answers nothing; goes on

`pid` is the server's process (and process group); `log` the file with what it printed, kept under `.cache/servers/logs`.
Data live in a temporary folder until the `with` block ends. A server never outlives its starter, not even one that was
killed with SIGKILL. `ServerError` says why a server did not start, with the end of its log.
"""

from deploy.servers.elasticsearch import Elasticsearch
from deploy.servers.redis import Redis
from deploy.servers.server import Server, ServerError

__all__ = ["Elasticsearch", "Redis", "Server", "ServerError"]
