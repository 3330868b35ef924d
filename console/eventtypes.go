package console

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"spendhook/events/eventtype"
)

// typesPage lists all types, and shows one.
type typesPage struct {
	Types           []eventtype.Type
	Shown           *eventtype.Type // nil: none is chosen, or there is none of that name
	Schema, Example string          // of it
}

func (s *server) eventTypes(ctx context.Context, v *visit) error {
	types, err := s.opts.EventTypes.List(ctx)
	if err != nil {
		return err
	}
	page := typesPage{Types: types}
	name := v.text("name")
	if i := slices.IndexFunc(types, func(t eventtype.Type) bool { return t.Name == name }); i >= 0 {
		page.Shown = &types[i]
		page.Schema, page.Example = indented(types[i].Schema), indented(types[i].Example)
	}
	v.show("event-types", "Event types", page)
	return nil
}

// indented returns indented JSON, cut off at the size that a page shows.
func indented(text []byte) string {
	var pretty bytes.Buffer
	if len(text) == 0 || json.Indent(&pretty, text, "", "  ") != nil {
		return string(text)
	}
	return strings.ToValidUTF8(string(pretty.Bytes()[:min(pretty.Len(), shownPayload)]), "")
}
