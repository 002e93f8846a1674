#!/bin/sh
# The command on the image's PATH. `docker exec` and probes run it too.
set -eu

# Hadoop requires a name for its user. Some platforms run an image under a user id without a name.
if ! getent passwd "$(id -u)" > /dev/null; then
  export NSS_WRAPPER_PASSWD="/tmp/passwd-$(id -u)" NSS_WRAPPER_GROUP=/etc/group
  if [ ! -e "$NSS_WRAPPER_PASSWD" ]; then
    { cat /etc/passwd; echo "cdf-any:x:$(id -u):$(id -g)::/tmp:/usr/sbin/nologin"; } > "$NSS_WRAPPER_PASSWD"
  fi
  export LD_PRELOAD=libnss_wrapper.so
fi

# On Kubernetes Spark starts an executor's pod with this argument and these variables. The image builds the command.
if [ "${1-}" = executor ]; then
  jars=/opt/cdf/lib/python3.11/site-packages/pyspark/jars
  set --
  while option=$(printenv "SPARK_JAVA_OPT_$#"); do set -- "$@" "$option"; done
  exec java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
fi
exec /opt/cdf/bin/cdf-replicator "$@"
