#!/bin/sh
# Link a Java of the modules that the service can use, from Debian's JDK.
#
#   link-java.sh FOLDER
set -eu

# Spark, Delta and Hadoop: java.desktop has JavaBeans, jdk.security.auth Hadoop's login, jdk.incubator.vector an argument
# of Spark's launcher, java.net.http the client of Unity Catalog.
modules=java.se,jdk.charsets,jdk.incubator.vector,jdk.net,jdk.nio.mapmode,jdk.security.auth,jdk.security.jgss
modules=$modules,jdk.unsupported,jdk.xml.dom,jdk.zipfs
# TLS with elliptic curves, and hardware tokens.
modules=$modules,jdk.crypto.ec,jdk.crypto.cryptoki
# Names from DNS, JMX, an exporter's web server, flight recordings.
modules=$modules,jdk.naming.dns,jdk.naming.rmi,jdk.management,jdk.management.agent,jdk.management.jfr,jdk.httpserver,jdk.jfr

home=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")
# Java's own classes have no line numbers, which saves 9 MB.
"$home/bin/jlink" --add-modules "$modules" --output "$1" --compress=2 --strip-java-debug-attributes --no-header-files --no-man-pages

# Debian's list of authorities, which `update-ca-certificates` writes, at the path that Debian's Java reads.
ln -sf /etc/ssl/certs/java/cacerts "$1/lib/security/cacerts"

# An archive of the base classes: jlink of Java 17 writes none, and a start without one takes longer.
"$1/bin/java" -Xshare:dump > /dev/null
"$1/bin/java" -Xshare:on -version
