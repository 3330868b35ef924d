//go:build faults

package main

import (
	"testing"

	"spendhook/internal/redistest"
)

// Under load, two replicas are upgraded one by one to the next release, and then downgraded to
// this one, as in docs/upgrade.md. No event is lost, and none is sent twice.
func TestUpgradeAndBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	replicas := []installation{
		newInstallation(t, server.URL(), sharedKey+briefRetries), newInstallation(t, server.URL(), sharedKey+briefRetries),
	}
	tr := newTrial(t, server.Client(), replicas...)
	for _, binary := range []string{nextRelease(t), ""} {
		for i := range replicas {
			tr.grow(100)
			tr.load.aim(tr.daemons[1-i]) // as a balancer does, once a replica is not ready
			tr.daemons[i].stop(t)
			replicas[i].binary = binary
			tr.replace(i, replicas[i].startChild(t))
		}
	}
	tr.grow(100)
	tr.load.pause()
	if l := tr.account(); l.repeats > 0 {
		t.Errorf("%d attempts were made that are not counted", l.repeats)
	}
	tr.load.resume()
	tr.finish()
}
