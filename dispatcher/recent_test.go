package dispatcher

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/internal/redistest"
)

func TestRecentIsBoundedAndGivesEachOnce(t *testing.T) {
	t.Parallel()
	var r recent
	company := uuid.New()
	const size, n = 64 << 10, 1000
	refs := make([]events.Ref, n)
	for i := range n {
		e := &events.Stored{Event: events.Event{ID: strconv.Itoa(i), CompanyUUID: company}, Body: make([]byte, size)}
		refs[i] = e.Ref()
		r.add([]*events.Stored{e})
	}
	if kept := len(r.young) + len(r.old); kept*size > 2*(recentBytes+2*size) {
		t.Errorf("%d events of %d bytes are kept", kept, size)
	}
	found := r.take(refs)
	if found[0] != nil || found[n-1] == nil || len(found[n-1].body) != size {
		t.Errorf("first %v, last %v", found[0], found[n-1])
	}
	for i, e := range r.take(refs) {
		if e != nil {
			t.Errorf("%s is there twice", refs[i])
		}
	}
}

// What another process accepted is read from Redis, and what this one accepted
// need not be.
func TestBodiesAtHandAreNotRead(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	mine := h.emit(3)
	for _, id := range mine[:2] {
		if err := client.Set(t.Context(), events.EventKey(events.Ref{Company: h.company, ID: id}), "unread", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	h.start()
	other := build(t, client, nil)
	other.company, other.seq = h.company, 100
	theirs := other.emit(3)
	for _, id := range append(mine, theirs...) {
		h.reaches(id, sub, StatusDelivered)
	}
}

func TestPackedRefs(t *testing.T) {
	t.Parallel()
	refs := []string{"job:c1/j", "c1/a", "c1/b", "c2/a/s", "c2/a/s2", "c1/a"}
	packed := packRefs(refs)
	if want := "job:c1/j c1/a /b c2/a/s /a/s2 c1/a"; packed != want {
		t.Errorf("packed %q, want %q", packed, want)
	}
	if got := unpackRefs(packed); !slices.Equal(got, refs) {
		t.Errorf("unpacked %q", got)
	}
	if whole := strings.Join(refs, " "); !slices.Equal(unpackRefs(whole), refs) {
		t.Error("references that are whole are read otherwise")
	}
	if got := unpackRefs(packRefs(nil)); len(got) != 0 {
		t.Errorf("nothing is %q", got)
	}
}
