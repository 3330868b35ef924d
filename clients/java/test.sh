#!/bin/sh
# Runs the tests. They need the JDK, and drivers for the store: JDBC is the class path of the drivers, and DATABASES are the JDBC
# URLs to test with, separated by spaces, in which {} stands for a new folder. The tables in them are dropped.
set -eu
cd "$(dirname "$0")"
./build.sh
sqlite='jdbc:sqlite:{}/inbox.db?busy_timeout=20000'
exec java -ea -Dvectors=../conformance/vectors.json "-Ddatabases=${DATABASES:-$sqlite}" \
	-cp "build/classes:build/tests:${JDBC:-/usr/share/java/sqlite-jdbc.jar}" io.spendhook.TestRun
