#!/bin/sh
# Compiles the library into build/classes, and the tests and the conformance program into folders beside it. It needs the JDK
# alone; Maven builds the published package.
set -eu
cd "$(dirname "$0")"
rm -rf build
javac --release 17 -Xlint:all -Werror -d build/classes $(find src/main/java -name '*.java')
javac --release 17 -Xlint:all -Werror -cp build/classes -d build/conformance conformance/Conformance.java
javac --release 17 -Xlint:all -Werror -cp build/classes -d build/tests $(find src/test/java -name '*.java')
