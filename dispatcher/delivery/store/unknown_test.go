package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/events"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// This release keeps the fields that a newer release has added to a record.
func TestUnknownFieldsOfARecordStay(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	client := redistest.Start(t, redistest.Options{}).Client()
	ref := delivery.Ref{Ref: events.Ref{Company: uuid.New(), ID: "one"}, Subscriber: uuid.New()}
	key, field := partition.Key(ref.Company, "d:"+ref.Ref.String()), ref.Subscriber.String()
	stored := `R3|{"e":"PAYMENT_PAID","c":1,"u":2,"a":[{"n":1,"t":1,"d":1,"later":{"x":[1]}}],"new":"kept"}`
	client.HSet(ctx, key, field, stored)

	base, err := delivery.Decode(stored)
	if err != nil {
		t.Fatal(err)
	}
	policy := delivery.Policy{Retention: time.Hour, DeadRetention: time.Hour, Schedule: []time.Duration{time.Minute}}
	now := time.Now()
	next := delivery.Decide(*base, attempt.Result{Class: attempt.ClassHTTP5xx, StartedAt: now}, policy, now, func() float64 { return 0 })
	kept := store.New(store.Options{Client: client, Policy: policy})
	recorded, _, err := kept.Record(ctx, now, []store.Write{{
		Event: ref.Ref, Changes: []store.Change{{Ref: ref, Base: base, Next: &next}},
	}})
	if err != nil || recorded[0].Err != nil || recorded[0].Found[0] != nil {
		t.Fatal(err, recorded)
	}
	written := client.HGet(ctx, key, field).Val()
	for _, want := range []string{"R4|", `"later":{"x":[1]}}`, `"new":"kept"}`, `{"n":1,`} {
		if !strings.Contains(written, want) {
			t.Errorf("%s has no %s", written, want)
		}
	}
}
