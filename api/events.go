package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/auth"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/query"
	"spendhook/dispatcher/inspect"
	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/events/publish"
	"spendhook/internal/invalid"
	"spendhook/internal/tracing"
	"spendhook/subscribers/listing"
)

const maxBatch = 1000 // events of one request

// IngestEvents is POST /api/v1/events.
func (s *server) IngestEvents(w http.ResponseWriter, r *http.Request, p gen.IngestEventsParams) {
	if bytes.HasPrefix(bytes.TrimLeft(bodyOf(r), " \t\r\n"), []byte("[")) {
		// An array needs no Idempotency-Key, since each event has an id.
		s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
			return s.ingestBatch(ctx, w.Header(), c, p.CompanyUUID, bodyOf(r), tracing.OfRequest(r))
		})
		return
	}
	s.once(w, r, func(ctx context.Context, c *caller) (reply, error) {
		e, err := decode[events.Event](r)
		if err != nil {
			return reply{}, err
		}
		return s.ingestOne(ctx, c, p.CompanyUUID, e, tracing.OfRequest(r))
	})
}

func (s *server) ingestOne(ctx context.Context, c *caller, named *uuid.UUID, e events.Event, trace tracing.Parent) (reply, error) {
	if err := prepareEvent(c, named, &e); err != nil {
		return reply{}, err
	}
	e.Trace = trace
	results, err := s.opts.Publisher.Accept(ctx, []events.Event{e})
	if err != nil {
		return reply{}, err
	}
	if results[0].Err != nil {
		return reply{}, results[0].Err
	}
	status := http.StatusAccepted
	if results[0].Status == publish.Duplicate {
		status = http.StatusOK
	}
	return reply{status: status, content: gen.EventResult{ID: e.ID, Status: gen.EventResultStatus(results[0].Status)}}, nil
}

// prepareEvent sets the company of an event to that of the token or the query, and refuses another
// one. It refuses types that are reserved for operational events.
func prepareEvent(c *caller, named *uuid.UUID, e *events.Event) error {
	if eventtype.Reserved(e.Type) {
		return fieldProblem("event", "EVENT_TYPE_RESERVED", "is raised by this service itself, about deliveries")
	}
	of := &e.CompanyUUID
	if *of == uuid.Nil {
		of = nil
	}
	company, err := c.companyIn(named, of)
	if company != nil {
		e.CompanyUUID = *company
	}
	return err
}

// ingestBatch accepts an array. A bad item has an error result; the others are accepted.
func (s *server) ingestBatch(ctx context.Context, h http.Header, c *caller, named *uuid.UUID, text []byte, trace tracing.Parent) (reply, error) {
	items, err := split(text)
	if err != nil {
		return reply{}, err
	}
	if err := s.throttle.charge(ctx, h, c, 1, len(items)); err != nil {
		return reply{}, err
	}
	results := make([]gen.EventItemResult, len(items))
	var accepted []events.Event
	var places []int // of the accepted ones, in results
	for i, item := range items {
		e, err := readItem(c, named, item)
		if err != nil {
			results[i] = rejected(idOf(item), err)
			continue
		}
		e.Trace = trace
		accepted, places = append(accepted, e), append(places, i)
	}
	if err := s.acceptAll(ctx, accepted, places, results); err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusAccepted, content: gen.EventBatchResult{Results: results}}, nil
}

func (s *server) acceptAll(ctx context.Context, list []events.Event, places []int, results []gen.EventItemResult) error {
	if len(list) == 0 {
		return nil
	}
	answers, err := s.opts.Publisher.Accept(ctx, list)
	if err != nil {
		return err
	}
	for i, a := range answers {
		if a.Err != nil {
			results[places[i]] = rejected(list[i].ID, a.Err)
			continue
		}
		results[places[i]] = gen.EventItemResult{ID: list[i].ID, Status: gen.EventItemResultStatus(a.Status)}
	}
	return nil
}

// split returns the items of an array and checks only its syntax. Duplicate names, deep
// nesting and bad UTF-8 are found later and fail their item alone.
func split(text []byte) ([]jsontext.Value, error) {
	var items batch
	err := json.Unmarshal(text, &items, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return nil, syntaxProblem(e)
	}
	switch {
	case errors.Is(err, errBatch):
		return nil, fieldProblem("", "TOO_MANY", "the array has more than %d events", maxBatch)
	case err != nil:
		return nil, malformed("The body is not a valid JSON array.")
	case len(items) == 0:
		return nil, fieldProblem("", "REQUIRED", "the array has no events")
	}
	return items, nil
}

// batch stops reading after maxBatch items. A body could hold millions of tiny items, and
// each takes many times its size in memory.
type batch []jsontext.Value

var errBatch = errors.New("too many events")

// UnmarshalJSONFrom reads an array.
func (b *batch) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if _, err := dec.ReadToken(); err != nil { // the bracket, which the caller has seen
		return err
	}
	for dec.PeekKind() != jsontext.KindEndArray {
		if len(*b) == maxBatch {
			return errBatch
		}
		item, err := dec.ReadValue()
		if err != nil {
			return err
		}
		*b = append(*b, item.Clone())
	}
	_, err := dec.ReadToken()
	return err
}

func readItem(c *caller, named *uuid.UUID, item jsontext.Value) (events.Event, error) {
	var e events.Event
	if item.Kind() != jsontext.KindBeginObject {
		return e, fieldProblem("", "INVALID", "must be an event object")
	}
	if err := decodeJSON(item, &e); err != nil {
		return e, err
	}
	return e, prepareEvent(c, named, &e)
}

// idOf returns the id of an item that could not be read as an event, so that the emitter
// can find the item; "" without an id.
func idOf(item jsontext.Value) string {
	var named struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(item, &named, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) != nil {
		return ""
	}
	return named.ID
}

func isEventID(id string) bool { return events.Ref{ID: id}.Valid() }

// rejected is the result of an item that was not accepted.
func rejected(id string, err error) gen.EventItemResult {
	p := problemOf(err)
	result := gen.EventItemResult{
		ID: id, Status: gen.EventItemResultStatusREJECTED,
		Error: &gen.ItemError{Code: p.code, Message: p.detail},
	}
	if !isEventID(id) {
		result.ID = ""
	}
	if errors.Is(err, publish.ErrConflict) {
		result.Status = gen.EventItemResultStatusCONFLICT
	}
	if e, ok := errors.AsType[*invalid.Error](err); ok {
		list := fieldErrors(problemOf(e).fields)
		result.Error.Errors = &list
	}
	return result
}

// ListEvents is GET /api/v1/events.
func (s *server) ListEvents(w http.ResponseWriter, r *http.Request, p gen.ListEventsParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		list, err := s.eventList(c, p)
		if err != nil {
			return reply{}, err
		}
		page, err := s.opts.Events.List(ctx, list.filter)
		if err != nil {
			return reply{}, err
		}
		content, err := list.shown(ctx, page.Items)
		if err != nil {
			return reply{}, err
		}
		rep := byCursor(r, list.filter.Size, content, page.Next, func(e gen.Event) gen.Event { return e })
		rep.bytes = 0
		for _, e := range content {
			rep.bytes += int64(len(e.Metadata) + len(e.ErrorMessage) + eventRest)
		}
		return rep, nil
	})
}

// eventRest estimates the bytes of an event without metadata and error message.
const eventRest = 512

// eventList reads one page of a list of events.
type eventList struct {
	*server

	filter     history.Filter
	statuses   []query.EventStatus // empty: any
	deliveries query.Filter        // at least one delivery of the event matches it
	known      map[events.Ref]query.EventStatus
}

func (s *server) eventList(c *caller, p gen.ListEventsParams) (*eventList, error) {
	l := &eventList{
		server: s, statuses: valuesOf[query.EventStatus](p.Status), known: map[events.Ref]query.EventStatus{},
		filter: history.Filter{
			Subscriber: p.SubscriberUUID, Types: or(p.Event, nil), From: p.From, To: p.To,
			Cursor: textOf(p.Cursor), Size: or(p.Size, defaultSize),
		},
		deliveries: query.Filter{
			Subscriber: p.SubscriberUUID, ErrorClasses: valuesOf[string](p.ErrorClass),
			CodeFrom: or(p.StatusCodeFrom, 0), CodeTo: or(p.StatusCodeTo, 0), From: p.From, To: p.To,
		},
	}
	of := l.deliveries
	if len(l.statuses)+len(of.ErrorClasses)+of.CodeFrom+of.CodeTo > 0 || of.Subscriber != nil {
		l.filter.Only = l.only
		l.filter.OnlyKey = fmt.Sprint(l.statuses, of.Subscriber, of.ErrorClasses, of.CodeFrom, of.CodeTo)
	}
	var err error
	l.filter.Company, err = checkDeliveries(c, of, p.CompanyUUID)
	return l, err
}

// only reports which events have one of the statuses and a delivery that matches.
func (l *eventList) only(ctx context.Context, refs []events.Ref) (on []bool, work int, err error) {
	sums, err := l.opts.Deliveries.SumUp(ctx, refs, l.deliveries)
	if err != nil {
		return nil, 0, err
	}
	// Without a filter of deliveries, events without a delivery are listed too.
	of := l.deliveries
	anyDelivery := of.Subscriber == nil && len(of.ErrorClasses)+of.CodeFrom+of.CodeTo == 0
	on = make([]bool, len(refs))
	for i, sum := range sums {
		work += sum.Work
		on[i] = (anyDelivery || sum.Matches) && (len(l.statuses) == 0 || slices.Contains(l.statuses, sum.Status))
		if on[i] {
			l.known[refs[i]] = sum.Status
		}
	}
	return on, work, nil
}

// shown is the published form of a page, with the statuses by which it was chosen.
func (l *eventList) shown(ctx context.Context, items []events.Stored) ([]gen.Event, error) {
	if l.filter.Only == nil {
		return l.withStatus(ctx, items)
	}
	return convertAll(items, func(e events.Stored) gen.Event { return shownEvent(e, l.known[e.Ref()]) }), nil
}

// withStatus is the published form of events, with one look-up of statuses.
func (s *server) withStatus(ctx context.Context, items []events.Stored) ([]gen.Event, error) {
	refs := convertAll(items, func(e events.Stored) events.Ref { return e.Ref() })
	sums, err := s.opts.Deliveries.SumUp(ctx, refs, query.Filter{})
	if err != nil {
		return nil, err
	}
	content := make([]gen.Event, len(items))
	for i, e := range items {
		content[i] = shownEvent(e, sums[i].Status)
	}
	return content, nil
}

func shownEvent(e events.Stored, status query.EventStatus) gen.Event {
	return gen.Event{
		ID: e.ID, CompanyUUID: e.CompanyUUID, Event: e.Type, Timestamp: e.Timestamp, Metadata: e.Metadata,
		ErrorCode: e.ErrorCode, ErrorMessage: e.ErrorMessage, AcceptedAt: e.AcceptedAt, Status: gen.EventStatus(status),
	}
}

// GetEvent is GET /api/v1/events/{id}.
func (s *server) GetEvent(w http.ResponseWriter, r *http.Request, id gen.EventPath, p gen.GetEventParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		ref, err := eventRef(c, id, p.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		stored, err := s.opts.Events.Get(ctx, ref)
		if err != nil {
			return reply{}, err
		}
		if stored.State == events.Compacted {
			return reply{}, compacted(stored)
		}
		content, err := s.withStatus(ctx, []events.Stored{stored})
		if err != nil {
			return reply{}, err
		}
		return ok(content[0]), nil
	})
}

// compacted is the problem for an event without its payload; it shows when the event was
// accepted.
func compacted(e events.Stored) *problem {
	p := problemOf(events.ErrCompacted)
	p.detail = fmt.Sprintf("The event was accepted at %s and settled; its payload was removed.", e.AcceptedAt.Format(time.RFC3339))
	return p
}

// eventRef returns the event of a request. A malformed id is answered as not found.
func eventRef(c *caller, id string, named ...*uuid.UUID) (events.Ref, error) {
	company, err := c.companyFor(named...)
	if err != nil {
		return events.Ref{}, err
	}
	if !isEventID(id) {
		return events.Ref{}, events.ErrNotFound
	}
	return events.Ref{Company: company, ID: id}, nil
}

// ListEventDeliveries is GET /api/v1/events/{id}/deliveries.
func (s *server) ListEventDeliveries(w http.ResponseWriter, r *http.Request, id gen.EventPath, p gen.ListEventDeliveriesParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		ref, err := eventRef(c, id, p.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		if _, err := s.opts.Events.Get(ctx, ref); err != nil {
			return reply{}, err
		}
		list, err := s.opts.Deliveries.OfEvent(ctx, ref)
		return ok(gen.EventDeliveries{Content: convertAll(list, shownDelivery)}), err
	})
}

// ExplainEvent is GET /api/v1/events/{id}/explain.
func (s *server) ExplainEvent(w http.ResponseWriter, r *http.Request, id gen.EventPath, p gen.ExplainEventParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		ref, err := eventRef(c, id, p.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		list, err := s.opts.Inspector.Explain(ctx, ref)
		return ok(gen.EventExplanation{EventID: ref.ID, CompanyUUID: ref.Company, Subscribers: shownExplanations(list)}), err
	})
}

func shownExplanations(list []inspect.Explanation) []gen.SubscriberExplanation {
	shown := make([]gen.SubscriberExplanation, len(list))
	for i, e := range list {
		shown[i] = gen.SubscriberExplanation{
			SubscriberUUID: e.Subscriber.UUID, Name: e.Subscriber.Name, CallbackURL: e.Subscriber.CallbackURL,
			Outcome: gen.SubscriberExplanationOutcome(e.Verdict), Detail: e.Verdict.Detail(),
		}
		if e.Err != nil {
			shown[i].FilterError = new(e.Err.Error())
		}
		if e.Delivery != nil {
			d := shownDelivery(*e.Delivery)
			shown[i].Delivery = &d
		}
	}
	return shown
}

// ReplayEvent is POST /api/v1/events/{id}/replay.
func (s *server) ReplayEvent(w http.ResponseWriter, r *http.Request, id gen.EventPath, p gen.ReplayEventParams) {
	s.once(w, r, func(ctx context.Context, c *caller) (reply, error) {
		in, err := decode[gen.ReplayRequest](r)
		if err != nil {
			return reply{}, err
		}
		ref, err := eventRef(operatorOf(c, p.CompanyUUID, in.CompanyUUID), id, p.CompanyUUID, in.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		only := or(in.SubscriberUuids, nil)
		switch {
		case in.SubscriberUuids != nil && len(only) == 0:
			return reply{}, fieldProblem("subscriberUuids", "REQUIRED", "must name a subscriber; leave it out for all of them")
		case len(only) > maxReplay:
			return reply{}, fieldProblem("subscriberUuids", "TOO_MANY", "must have at most %d subscribers", maxReplay)
		}
		c.auditTarget(&ref.Company, "event", ref.ID)
		list, err := s.replay(ctx, w.Header(), c, ref, only)
		accepted := reply{status: http.StatusAccepted, content: gen.EventDeliveries{Content: convertAll(list, shownDelivery)}}
		return accepted.withLocation("/api/v1/events/"+ref.ID+"/deliveries", ref.Company), err
	})
}

// maxReplay is how many subscribers a replay may name.
const maxReplay = 1000

// operatorOf lets a caller with the scope operator name any company.
func operatorOf(c *caller, named ...*uuid.UUID) *caller {
	if !c.May(auth.ScopeOperator) || !slices.ContainsFunc(named, func(id *uuid.UUID) bool { return id != nil }) {
		return c
	}
	operator := *c.Caller
	operator.Company = nil
	return &caller{Caller: &operator}
}

// replay takes rate-limit tokens for the most deliveries that the replay can make, and
// returns the tokens that were not needed.
func (s *server) replay(ctx context.Context, h http.Header, c *caller, ref events.Ref, only []uuid.UUID) ([]delivery.Delivery, error) {
	most := len(only)
	if most == 0 {
		var err error
		if _, most, err = s.opts.SubscriberLists.List(ctx, listing.Filter{Company: &ref.Company, Enabled: new(true), Size: 1}); err != nil {
			return nil, err
		}
	}
	most = max(1, most)
	if err := s.throttle.charge(ctx, h, c, 1, most); err != nil {
		return nil, err
	}
	list, err := s.opts.Redelivery.Replay(ctx, ref, only)
	_ = s.throttle.charge(ctx, h, c, most, max(1, len(list))) // returns tokens, which is never refused
	return list, err
}

// EraseEventPayload is DELETE /api/v1/events/{id}/payload.
func (s *server) EraseEventPayload(w http.ResponseWriter, r *http.Request, id gen.EventPath, p gen.EraseEventPayloadParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		ref, err := eventRef(c, id, p.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		c.auditTarget(&ref.Company, "event", ref.ID)
		return noContent(), s.opts.Deliveries.Erase(ctx, ref)
	})
}
