package store

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/events/history"
)

// crowded is an archive in which each event has ten deliveries.
type crowded struct {
	history.Archive

	asked []int // events, by call
}

func (c *crowded) Get(_ context.Context, refs []events.Ref) ([]*history.Archived, error) {
	c.asked = append(c.asked, len(refs))
	out := make([]*history.Archived, len(refs))
	for i, ref := range refs {
		out[i] = &history.Archived{Ref: ref}
		for j := range 10 {
			out[i].Deliveries = append(out[i].Deliveries, history.ArchivedDelivery{Subscriber: uuid.UUID{byte(j + 1)}, Record: "D1|{}"})
		}
	}
	return out, nil
}

// A bounded number of archived deliveries is loaded at once, but all of the first event.
func TestArchivedDeliveriesAreLoadedInParts(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	archive := &crowded{}
	h.opts.Archive = archive
	refs := make([]delivery.Ref, 90)
	for i := range refs {
		refs[i].Ref = events.Ref{Company: h.company, ID: fmt.Sprint("e", i)}
	}
	for most, c := range map[int]struct{ events, calls int }{5: {1, 1}, 255: {25, 2}, 305: {30, 2}, 1000: {90, 4}} {
		archive.asked = nil
		fields, err := h.readFields(t.Context(), most, refs, true)
		if err != nil || len(fields) != c.events || len(archive.asked) != c.calls || len(fields[0]) != 20 {
			t.Errorf("at most %d: of %d events in calls of %v, %v", most, len(fields), archive.asked, err)
		}
	}
	for i := range refs { // of one event
		refs[i] = delivery.Ref{Ref: refs[0].Ref, Subscriber: uuid.UUID{byte(i%11 + 1)}}
	}
	archive.asked = nil
	fields, err := h.readFields(t.Context(), 1000, refs, false)
	if err != nil || len(archive.asked) != 4 || archive.asked[0] != 1 || len(fields[9]) != 2 || fields[9][0] != refs[9].Subscriber.String() || len(fields[10]) != 0 {
		t.Errorf("%v of %v, %v", fields, archive.asked, err)
	}
}
