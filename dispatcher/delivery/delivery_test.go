package delivery

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/events"
)

// Delivery ids become part of Redis keys, so only valid event ids and UUIDs are accepted.
func TestDeliveryIDsAreCheckedWhole(t *testing.T) {
	t.Parallel()
	company, sub := uuid.New(), uuid.New()
	good := Ref{Ref: events.Ref{ID: "evt_1-A"}, Subscriber: sub}
	if r, err := ParseID(company, good.PublicID()); err != nil || r.Company != company || r.ID != "evt_1-A" || r.Subscriber != sub {
		t.Errorf("%s: %v, %v", good.PublicID(), r, err)
	}
	for _, id := range []string{
		"", ".", "e", "e.", "." + sub.String(), "e.x", "a/b." + sub.String(), "a:b." + sub.String(), "{7}." + sub.String(),
		"a\n." + sub.String(), strings.Repeat("e", 129) + "." + sub.String(),
	} {
		if r, err := ParseID(company, id); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v, %v", id, r, err)
		}
	}
}
