package main

import (
	"testing"
)

// The suite itself is tested with the library for Go, in clients/conformance.
func TestConformanceOfWhatIsNoReceiver(t *testing.T) {
	t.Parallel()
	command(t, "", "conformance").want(t, exitUsage, "", "expected \"<command> ...\"")
	command(t, "", "conformance", "--").want(t, exitUsage, "", "give the command of the program")
	command(t, "", "conformance", "--", "/does/not/exist").want(t, exitFailure, "", "start the program")
	command(t, "", "conformance", "--", "sh", "-c", "echo $PORT; echo it failed >&2").want(t, exitFailure, "", `its first line is "0\n"; it failed`)
}
