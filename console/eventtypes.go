package console

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"spendhook/events/eventtype"
)

// typesPage lists all types, and shows the chosen one.
type typesPage struct {
	Types           []eventtype.Type
	Shown           *eventtype.Type // the chosen type; nil: none
	Schema, Example string          // of the chosen type
}

func (s *server) eventTypes(ctx context.Context, v *visit) error {
	types, err := s.opts.EventTypes.List(ctx)
	if err != nil {
		return err
	}
	page := typesPage{Types: types}
	name := v.Query("name")
	if i := slices.IndexFunc(types, func(t eventtype.Type) bool { return t.Name == name }); i >= 0 {
		page.Shown = &types[i]
		page.Schema, _ = indented(types[i].Schema)
		page.Example, _ = indented(types[i].Example)
	}
	v.show("event-types", "Event types", page)
	return nil
}

// indented returns indented JSON, cut off at the size that a page shows.
func indented(text []byte) (shown string, cut bool) {
	var pretty bytes.Buffer
	if json.Indent(&pretty, text, "", "  ") == nil {
		text = pretty.Bytes()
	}
	if len(text) <= shownPayload {
		return string(text), false
	}
	return strings.ToValidUTF8(string(text[:shownPayload]), ""), true
}
