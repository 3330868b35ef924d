package console

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/publish"
	"spendhook/internal/invalid"
)

// newEventPage is the form of an event.
type newEventPage struct {
	ID, Type, Timestamp, Metadata, ErrorCode, ErrorMessage string

	Types   []eventtype.Type
	Problem *problem
}

// newEvent shows the form, with the example of the type in the query. The form has an id and a time of its own: sent twice,
// it is one event.
func (s *server) newEvent(ctx context.Context, v *visit, _ uuid.UUID) error {
	types := s.eventTypeList(ctx)
	page := newEventPage{ID: uuid.NewString(), Type: v.Query("event"), Timestamp: s.opts.Now().UTC().Format(time.RFC3339), Metadata: "{}"}
	if i := slices.IndexFunc(types, func(t eventtype.Type) bool { return t.Name == page.Type }); i >= 0 && len(types[i].Example) > 0 {
		if example, cut := indented(types[i].Example); !cut {
			page.Metadata = example
		}
	}
	page.show(v, http.StatusOK, types)
	return nil
}

// show shows the form, with the types that may be sent.
func (p newEventPage) show(v *visit, status int, types []eventtype.Type) {
	p.Types = slices.DeleteFunc(types, func(t eventtype.Type) bool { return eventtype.Reserved(t.Name) })
	v.render(status, "new-event", "New event", p)
}

// emit accepts the event of the form, as from a service.
func (s *server) emit(ctx context.Context, v *visit, company uuid.UUID) error {
	form := newEventPage{
		ID: v.field("id"), Type: v.field("event"), Timestamp: v.field("timestamp"), Metadata: v.field("metadata"),
		ErrorCode: v.field("errorCode"), ErrorMessage: v.field("errorMessage"),
	}
	v.setAuditEntry("event.emit", form.Type, &company, "event", form.ID)
	done, err := s.accept(ctx, company, form)
	if err == nil {
		if done == "known" {
			v.entry = nil // nothing has changed
		}
		return v.done(eventPath(events.Ref{Company: company, ID: form.ID}), done)
	}
	p, refused := refusal(err)
	if !refused {
		return err
	}
	v.entry, form.Problem = nil, &p
	form.show(v, p.Status, s.eventTypeList(ctx))
	return nil
}

// eventTypeList returns the types with what is stored about them, or while that cannot be read those of the catalogue.
func (s *server) eventTypeList(ctx context.Context) []eventtype.Type {
	if types, err := s.opts.EventTypes.List(ctx); err == nil {
		return types
	}
	return s.opts.Catalogue.Types()
}

// accept returns what the next page says.
func (s *server) accept(ctx context.Context, company uuid.UUID, form newEventPage) (done string, err error) {
	e := events.Event{
		ID: form.ID, CompanyUUID: company, Type: form.Type,
		Metadata: jsontext.Value(form.Metadata), ErrorCode: form.ErrorCode, ErrorMessage: form.ErrorMessage,
	}
	var problems invalid.Error
	if e.Timestamp, err = time.Parse(time.RFC3339, form.Timestamp); err != nil {
		problems.Add("timestamp", "INVALID", "must be a time such as 2026-11-29T12:00:00Z")
	}
	publish.CheckEmitted(&problems, &e)
	if !e.Metadata.IsValid() || e.Metadata.Kind() != jsontext.KindBeginObject {
		problems.Add("metadata", "INVALID", "must be a JSON object, each of its names once")
	}
	if err := problems.OrNil(); err != nil {
		return "", err
	}
	results, err := s.opts.Publisher.Accept(ctx, []events.Event{e})
	if err != nil {
		return "", err
	}
	if results[0].Status == publish.Duplicate {
		return "known", nil
	}
	return "emitted", results[0].Err
}
