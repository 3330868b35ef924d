package workqueue_test

import (
	"testing"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue/quarantine"
)

// Damaged work does not fail a call, so the sound work of that call is processed.
func TestDamagedWorkFailsNoCall(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("r"), companies(testPartition, 1)[0]
	b.queued(q, company, "queued")
	b.accept(company, "well", "damaged", "half")
	c := company.String()
	for _, key := range []string{"e:" + c + ":damaged", "e:" + c + ":queued"} {
		b.do("DEL", key)
		b.do("HSET", key, "f", "v")
	}
	b.do("SET", "d:"+c+"/half", "x")
	b.claim(q)
	if n := b.takeOver(b.queue("s"), q.Name()); n != 4 {
		t.Errorf("%d notes were requeued", n)
	}
	q.Rename()
	readable := func(value string) bool { return value != "" && value != "?" } // "?": the key has a wrong type
	seen := map[string]bool{}
	for range 3 {
		for _, batch := range b.claim(q) {
			for _, e := range batch.Events {
				seen[e.ID] = readable(e.Value)
			}
			for _, d := range batch.Deliveries {
				seen[d.EventID] = readable(d.Value)
				b.record(q.Name(), b.attempted(company, d, attempt.ClassNone, store.Reached))
			}
		}
	}
	want := map[string]bool{"well": true, "damaged": false, "half": true, "queued": false}
	for id, expected := range want {
		if got, ok := seen[id]; !ok || got != expected {
			t.Errorf("%s was claimed %v, readable %v", id, ok, got)
		}
	}
	for _, id := range []string{"damaged", "half"} {
		if err := b.quarantine(q).Move(t.Context(), q.Name(), quarantine.Entry{Company: company, EventID: id}); err != nil {
			t.Error(err)
		}
	}
	if n := b.do("ZCARD", "quarantine"); n != int64(2) {
		t.Errorf("%v are quarantined", n)
	}
}
