package events

import (
	"testing"

	"github.com/google/uuid"
)

func FuzzDecodeCursor(f *testing.F) {
	company := uuid.UUID{1}
	filter := Filter{Company: &company, Type: "A"}
	f.Add(cursor{company: company, place: place{ms: 1700000000000, id: "e1"}}.encode(filter))
	f.Add(cursor{company: uuid.UUID{2}}.encode(filter))
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		filter.Cursor = text
		c, err := decodeCursor(filter)
		if err == nil && text != "" && (c.company != company || c.encode(filter) != text) {
			t.Errorf("cursor %q decoded as %+v", text, c)
		}
	})
}
