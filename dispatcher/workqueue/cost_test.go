package workqueue_test

import (
	"strconv"
	"strings"
	"testing"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue"
	"spendhook/internal/redistest"
)

// commands counts the commands that Redis runs meanwhile, with those of scripts.
func (b *bench) commands(do func()) int {
	b.tb.Helper()
	count := func() (n int) {
		for line := range strings.Lines(b.client.Info(b.ctx, "commandstats").Val()) {
			name, rest, _ := strings.Cut(line, ":calls=")
			calls, _, _ := strings.Cut(rest, ",")
			if c, err := strconv.Atoi(calls); err == nil && name != "cmdstat_info" {
				n += c
			}
		}
		return n
	}
	before := count()
	do()
	return count() - before
}

// A claim costs Redis few commands, also of a single event, and of the few places that were freed
// at an endpoint.
func TestCommandsOfAClaim(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Start(t, redistest.Options{}).Client())
	q := workqueue.New(workqueue.Options{Client: b.client, Replica: "r", EndpointLimit: 64, HostLimit: 64, BreakerFailures: testFailures})
	all := companies(testPartition, 2)
	b.accept(all[0], "first")
	b.overflowAll(q.Name(), b.claim(q)) // so that Redis knows the script, and the company's cost
	b.succeed(q, all[0], b.claim(q))
	b.accept(all[0], "one")
	var got []workqueue.Batch
	if n := b.commands(func() { got = q.ClaimAs(b.ctx, q.Name(), testPartition, q.Number()).Batches }); len(got) != 1 || len(got[0].Events) != 1 || n > 21 {
		t.Errorf("%d commands for a claim of %+v", n, got)
	}
	b.overflowed(q, all[1], 100)
	work := deliveriesOf(b.claim(q))
	for _, d := range work[:4] {
		b.record(q.Name(), b.attempted(all[1], d, attempt.ClassNone, store.Reached))
	}
	if n := b.commands(func() { got = q.ClaimAs(b.ctx, q.Name(), testPartition, q.Number()).Batches }); len(work) != 64 || len(deliveriesOf(got)) != 4 || n > 35 {
		t.Errorf("%d commands for a claim of %+v", n, got)
	}
	b.mustBeRight()
}
