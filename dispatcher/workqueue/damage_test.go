package workqueue_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

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
		if err := b.quarantine().Move(t.Context(), q.Name(), quarantine.Entry{Company: company, EventID: id}); err != nil {
			t.Error(err)
		}
	}
	if n := b.do("ZCARD", "quarantine"); n != int64(2) {
		t.Errorf("%v are quarantined", n)
	}
}

// A company whose state has the wrong type gets no claims. The other companies of its partition get
// theirs, and it gets its own when the state is mended.
func TestDamagedStateStopsNoOtherCompany(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, all := b.queue("r"), companies(testPartition, 3)
	damaged, due, well := all[0], all[1], all[2]
	late := b.queued(q, due, "late")
	b.do("ZREM", "sched", due.String())
	b.do("DEL", "dq:"+due.String())
	b.do("ZADD", "due", 1, "e:"+due.String()+"/"+late.Subscriber.String())
	b.accept(damaged, "of-the-damaged")
	b.accept(well, "of-the-well")
	states := map[string]string{}
	for _, company := range []uuid.UUID{damaged, due} {
		key := "c:" + company.String()
		states[key] = b.do("DUMP", key).(string)
		b.do("SET", key, "damaged")
	}
	if claimed := b.claim(q); len(claimed) != 1 || claimed[0].Company != well {
		t.Errorf("claimed %+v", claimed)
	}
	if b.do("ZSCORE", "due", "~") == nil {
		t.Error("the partition is not due again")
	}
	for key, state := range states {
		b.do("RESTORE", key, 0, state, "REPLACE")
	}
	if claimed := b.claim(q); len(claimed) != 2 {
		t.Errorf("claimed when the state was mended: %+v", claimed)
	}
}

// A damaged key of one company stops no claims of the others in its partition. What was claimed
// before the damage was found is not forgotten.
func TestDamagedKeyStopsNoOtherCompany(t *testing.T) {
	t.Parallel()
	for key, claims := range map[string]int{"q:": 1, "dq:": 2, "bl:": 1, "s:": 1, "c:": 1} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redisOf(t))
			q, all := b.queue("r"), companies(testPartition, 2)
			damaged, well := all[0], all[1]
			b.accept(damaged, "of-the-damaged")
			b.accept(well, "of-the-well")
			b.do("DEL", key+damaged.String())
			if key == "q:" || key == "dq:" {
				b.do("SET", key+damaged.String(), "damaged")
			} else {
				b.do("RPUSH", key+damaged.String(), "damaged")
			}
			c := b.claimMost(q, 100)
			if c.Err != nil || len(c.Batches) != claims || c.Batches[claims-1].Company != well {
				t.Fatalf("claimed %+v", c)
			}
			notes := b.do("HLEN", "n:"+q.Name())
			if want := int64(claims + 1); notes != want { // the number of the claim is one
				t.Errorf("%v notes, want %d", notes, want)
			}
			if score := b.do("ZSCORE", "sched", damaged.String()); claims == 2 && fmt.Sprint(score) == "0" {
				t.Error("the company is not charged for what it claimed before the failure")
			}
			if len(c.Damaged) != 1 || c.Damaged[0] != damaged {
				t.Errorf("the claim names the companies %v", c.Damaged)
			}
		})
	}
}

// A takeover quarantines work that it cannot requeue, since a key of its company is damaged. It
// requeues the work of other companies.
func TestTakeoverQuarantinesWorkOfDamagedCompany(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	lost, all := b.queue("lost"), companies(testPartition, 2)
	damaged, well := all[0], all[1]
	b.accept(damaged, "of-the-damaged")
	b.accept(well, "of-the-well")
	if claimed := b.claim(lost); len(claimed) != 2 {
		t.Fatalf("claimed %+v", claimed)
	}
	b.do("SET", "q:"+damaged.String(), "damaged")
	b.do("ZADD", "om:"+damaged.String(), 1, "of-the-damaged")
	if n := b.takeOver(b.queue("owner"), lost.Name()); n != 2 {
		t.Errorf("%d notes were requeued or quarantined", n)
	}
	if b.do("ZSCORE", "quarantine", damaged.String()+"/of-the-damaged") == nil {
		t.Error("the event of the damaged company is lost")
	}
	if b.do("ZSCORE", "om:"+damaged.String(), "of-the-damaged") != nil {
		t.Error("ordered subscribers wait for the quarantined event")
	}
	if n := b.do("LLEN", "q:"+well.String()); n != int64(1) {
		t.Errorf("%v events of the other company wait", n)
	}
}

// A delivery whose queue cannot be offered in a takeover is quarantined, and not queued as well.
func TestTakeoverQuarantinesADeliveryOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	lost, company := b.queue("lost"), companies(testPartition, 1)[0]
	d := b.queued(lost, company, "queued")
	if claimed := b.claim(lost); len(claimed) != 1 || len(claimed[0].Deliveries) != 1 {
		t.Fatalf("claimed %+v", claimed)
	}
	b.do("SET", "dq:"+company.String(), "damaged")
	if n := b.takeOver(b.queue("owner"), lost.Name()); n != 1 {
		t.Errorf("%d notes were quarantined", n)
	}
	endpoint := company.String() + "/" + d.Subscriber.String()
	if b.do("ZSCORE", "quarantine", company.String()+"/queued/"+d.Subscriber.String()) == nil {
		t.Error("the delivery is not in the quarantine")
	}
	if b.do("ZSCORE", "eq:"+endpoint, "queued") != nil {
		t.Error("the quarantined delivery is in its endpoint queue, too")
	}
}

// A due endpoint queue with a damaged key stays due. The queues of other companies are promoted.
func TestPromoteKeepsDamagedQueueDue(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, all := b.queue("r"), companies(testPartition, 2)
	member := func(company uuid.UUID) string { return "e:" + company.String() + "/" + subscriber(company, 0).String() }
	b.do("SET", "es:"+member(all[0])[2:], "damaged")
	for _, company := range all {
		b.do("ZADD", "due", 1, member(company))
	}
	b.promote(q)
	damaged, other := b.do("ZSCORE", "due", member(all[0])), b.do("ZSCORE", "due", member(all[1]))
	if other != nil || damaged == nil || fmt.Sprint(damaged) == "1" {
		t.Errorf("the damaged queue is due at %v, the other one at %v", damaged, other)
	}
}
