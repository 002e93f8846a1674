"""Start real servers for the demo, the tests and the benchmarks, and remove them afterwards.

    from deploy.local.servers import Elasticsearch, Redis

    with Elasticsearch.start() as es, Redis.start(config={"maxmemory": "64mb"}) as redis:
        es.url      # http://127.0.0.1:<free port>
        redis.url   # redis://127.0.0.1:<free port>/0

        es.stop()                        # down; keeps its port and data
        es.restart()                     # up again (stopped first if need be), same port, same data
        redis.restart(keep_data=False)   # up again, empty
        es.kill()                        # SIGKILL, like a crash; restart() starts it again
        es.pause(); es.resume()          # hangs: accepts connections, sends no answer; continues

`pid` is the server's process and process group. `log` is the file with its output, under `.cache/servers/logs`.
The data are in a temporary folder until the `with` block ends. A server ends with the process that started it, even
if SIGKILL ended that process. `ServerError` holds the reason why a server did not start, and the end of its log.
"""

from deploy.local.servers.elasticsearch import Elasticsearch
from deploy.local.servers.opensearch import OpenSearch
from deploy.local.servers.postgres import Postgres
from deploy.local.servers.redis import Redis, Sentinel
from deploy.local.servers.server import Server, ServerError

__all__ = ["Elasticsearch", "OpenSearch", "Postgres", "Redis", "Sentinel", "Server", "ServerError"]
