# The image of the service. CDF_ variables configure it; its state is in the volume /var/lib/cdf.
#
#   docker build -t cdf-replicator .
#   docker build -t cdf-replicator --build-context jars=DIR .    with the jars in DIR, without Maven Central
#
# Every stage is based on Debian: Python 3.11 and Java 17 are packages with security updates. A build installs the newest.

FROM debian:bookworm-slim AS system
ENV DEBIAN_FRONTEND=noninteractive
# Packages of a stable Debian change only for security.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates ca-certificates-java libnss-wrapper libstdc++6 python3 tini zlib1g \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/*

FROM system AS java
COPY --chmod=755 deploy/image/link-java.sh /usr/local/bin/
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jdk-headless \
    && rm -rf /var/lib/apt/lists/* \
    && link-java.sh /opt/java

FROM system AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/cdf
WORKDIR /src
# Dependencies have their own layer: they change less often than README.md.
COPY deploy/constraints.txt deploy/constraints.txt
COPY pyproject.toml LICENSE ./
COPY cdf_replicator/__init__.py cdf_replicator/__init__.py
COPY connectors/__init__.py connectors/__init__.py
RUN touch README.md \
    && PIP_CONSTRAINT=deploy/constraints.txt /opt/cdf/bin/pip install --no-cache-dir --no-compile '.[all]'
COPY README.md README.md
COPY cdf_replicator cdf_replicator
COPY connectors connectors
RUN /opt/cdf/bin/pip install --no-cache-dir --no-compile --no-deps --force-reinstall .

# The artifacts of deploy/local/jars/ivy.xml, each checked against its checksum.
FROM build AS fetched
COPY --from=java /opt/java /opt/java
COPY --from=java /etc/ssl/certs/java /etc/ssl/certs/java
ENV JAVA_HOME=/opt/java \
    PATH=/opt/java/bin:$PATH
COPY deploy/local/jars deploy/local/jars
RUN /opt/cdf/bin/python -m deploy.local.jars.fetch delta /fetched \
    && /opt/cdf/bin/python -m deploy.local.jars.fetch s3 /fetched

# The writer of deploy/compose.yaml: build it with --target board
FROM fetched AS board
COPY deploy/local deploy/local
RUN cp /fetched/*.jar /opt/cdf/lib/python3.11/site-packages/pyspark/jars/ \
    && /opt/cdf/bin/python -c "import pathlib, deploy.local.demo.flights as f; f.write_csv(pathlib.Path('/tmp'))" \
    && rm /tmp/flights.csv \
    && install -d -o 10001 -g 0 -m 0770 /lake
ENV HOME=/tmp
USER 10001:0
ENTRYPOINT ["tini", "--", "/opt/cdf/bin/python", "-m", "deploy.local.demo.board"]
CMD ["/lake"]

FROM build AS environment
COPY deploy/image/leave-out.sh deploy/image/left-out.txt deploy/image/
RUN /opt/cdf/bin/pip uninstall --yes pip setuptools \
    && sh deploy/image/leave-out.sh deploy/image/left-out.txt /opt/cdf/lib/python3.11/site-packages

FROM scratch AS jars
COPY --from=fetched /fetched/ /

FROM system AS service
COPY --from=java /opt/java /opt/java
COPY --from=java /etc/ssl/certs/java /etc/ssl/certs/java
COPY --from=environment /opt/cdf /opt/cdf
COPY --from=jars *.jar /opt/cdf/lib/python3.11/site-packages/pyspark/jars/
COPY --chmod=755 deploy/image/entrypoint.sh /usr/local/bin/cdf-replicator
RUN useradd --uid 10001 --gid 0 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin cdf \
    && install -d -o 10001 -g 0 -m 0770 /var/lib/cdf
ENV JAVA_HOME=/opt/java \
    PATH=/usr/local/bin:/opt/cdf/bin:/opt/java/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    CDF_STATE_PATH=/var/lib/cdf \
    CDF_HTTP__HOST=0.0.0.0 \
    CDF_LOG__FORMAT=json

# The classes that Spark's JVM loads, for a faster start: of this Java and these jars. Jars of your own without Delta have none.
FROM service AS archive
WORKDIR /src
COPY deploy/local/class_archive.py deploy/local/class_archive.py
RUN mkdir -p /opt/cdf/share/cdf-replicator \
    && if ls /opt/cdf/lib/python3.11/site-packages/pyspark/jars/delta-spark_*.jar; then \
         /opt/cdf/bin/python -m deploy.local.class_archive; \
       fi

FROM service
COPY --from=archive /opt/cdf/share/cdf-replicator /opt/cdf/share/cdf-replicator
USER 10001:0
WORKDIR /tmp
VOLUME /var/lib/cdf
EXPOSE 9102
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 CMD ["cdf-replicator", "healthcheck"]
# Last, since they differ in every build.
ARG VERSION=0.1.0
ARG SOURCE=unknown
ARG REVISION=unknown
ARG CREATED=unknown
LABEL org.opencontainers.image.title="cdf-replicator" \
      org.opencontainers.image.description="Follows the Change Data Feed of Delta tables and keeps other systems in step." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED"
# Without -g: a signal to Spark's JVM would interrupt the running micro-batch.
ENTRYPOINT ["tini", "--", "cdf-replicator"]
CMD ["run"]
