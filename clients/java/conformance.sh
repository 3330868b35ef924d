#!/bin/sh
# Starts the conformance program in the place of the shell, so that it can be killed. Run build.sh first.
# JDBC is the class path of the drivers; by default those of Debian.
set -eu
cd "$(dirname "$0")"
exec java -Dsun.net.httpserver.nodelay=true -cp "build/classes:build/conformance:${JDBC:-/usr/share/java/sqlite-jdbc.jar:/usr/share/java/postgresql.jar}" Conformance
