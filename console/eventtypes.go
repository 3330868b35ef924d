package console

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"spendhook/events/eventtype"
)

// typesPage lists all types, and shows the chosen one.
type typesPage struct {
	Types           []eventtype.Type
	Shown           *eventtype.Type // the chosen type; nil: none
	Schema, Example string          // of the chosen type
	Cut             bool            // Schema or Example is too long for the page
	Form            *typeForm       // nil: types may not be changed
}

// typeForm is the form that documents a type.
type typeForm struct {
	Name, Description, Schema, Example string

	Problem *problem
}

func (s *server) eventTypes(ctx context.Context, v *visit) error { return s.showTypes(ctx, v, nil) }

// showTypes shows the list. form: what was sent and refused; nil for nothing.
func (s *server) showTypes(ctx context.Context, v *visit, form *typeForm) error {
	types, err := s.opts.EventTypes.List(ctx)
	if err != nil {
		return err
	}
	page := typesPage{Types: types}
	name := v.Query("name")
	if i := slices.IndexFunc(types, func(t eventtype.Type) bool { return t.Name == name }); i >= 0 {
		page.Shown = &types[i]
		var long, longer bool
		page.Schema, long = indented(types[i].Schema)
		page.Example, longer = indented(types[i].Example)
		page.Cut = long || longer
	}
	status := http.StatusOK
	switch {
	case form != nil:
		page.Form, status = form, form.Problem.Status
	case maySetForAll(&v.Grant):
		page.Form = &typeForm{}
		if t := page.Shown; t != nil && !t.Fixed && !page.Cut {
			page.Form = &typeForm{Name: t.Name, Description: t.Description, Schema: page.Schema, Example: page.Example}
		}
	}
	v.render(status, "event-types", "Event types", page)
	return nil
}

// putEventType documents a type.
func (s *server) putEventType(ctx context.Context, v *visit) error {
	form := &typeForm{Name: v.field("name"), Description: v.field("description"), Schema: v.field("schema"), Example: v.field("example")}
	v.setAuditEntry("event-type.put", "", nil, "event-type", form.Name)
	_, _, err := s.opts.EventTypes.Put(ctx, eventtype.Type{
		Name: form.Name, Description: form.Description, Schema: jsontext.Value(form.Schema), Example: jsontext.Value(form.Example),
	})
	if err == nil {
		return v.done("/console/event-types?name="+form.Name, "documented")
	}
	p, refused := refusal(err)
	if !refused {
		return err
	}
	v.entry, form.Problem = nil, &p
	return s.showTypes(ctx, v, form)
}

// removeEventType removes the documentation of a type.
func (s *server) removeEventType(ctx context.Context, v *visit) error {
	name := v.field("name")
	v.setAuditEntry("event-type.delete", "", nil, "event-type", name)
	if err := s.opts.EventTypes.Remove(ctx, name); err != nil {
		return err
	}
	return v.done("/console/event-types", "undocumented")
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
