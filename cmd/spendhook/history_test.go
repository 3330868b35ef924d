package main

import (
	"strings"
	"testing"
)

// The history in SQLite belongs to one replica: a second one does not start, and the first may start again at once.
func TestHistoryInSQLiteIsOfOneReplica(t *testing.T) {
	t.Parallel()
	url := sharedRedis(t)
	first := newInstallation(t, url, "dev: true\n"+sharedKey+"history: {enabled: true}\n")
	args := first.args()[1:]
	doctor := func(code int) finding {
		t.Helper()
		return found(t, code, "--config", args[len(args)-3], "--data-dir", first.dir, "--redis", url)["history"]
	}
	if f := doctor(exitFailure); f.Result != findingProblem || !strings.Contains(f.Remedy, "which creates the database") {
		t.Errorf("before the first start: %+v", f)
	}
	d := first.start(t)
	eventually(t, patience, "the tables are made", func() bool { return doctor(exitOK).Result == findingOK })
	second := newInstallation(t, url, "dev: true\n"+sharedKey+"history: {enabled: true}\n").begin(t)
	second.ended(t)
	if text := second.stderr.String(); second.code != exitFailure || !strings.Contains(text, "the history of several replicas needs PostgreSQL (storage.url)") {
		t.Errorf("the second replica ends with %d: %s", second.code, text)
	}
	d.stop(t)
	again := first.startChild(t)
	again.stop(t)
}
