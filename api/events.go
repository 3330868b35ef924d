package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/inspect"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/publish"
	"spendhook/internal/invalid"
	"spendhook/internal/tracing"
	"spendhook/subscribers/registry"
)

const maxBatch = 1000 // events of one request

// IngestEvents is POST /api/v1/events.
func (s *server) IngestEvents(ctx context.Context, q *request, body jsontext.Value) (reply, error) {
	if isArray(body) {
		return s.ingestBatch(ctx, q, body)
	}
	var e events.Event
	if err := decodeJSON(body, &e); err != nil {
		return reply{}, err
	}
	if err := q.prepareEvent(&e); err != nil {
		return reply{}, err
	}
	results, err := s.opts.Publisher.Accept(ctx, []events.Event{e})
	if err != nil {
		return reply{}, err
	}
	if results[0].Err != nil {
		return reply{}, results[0].Err
	}
	rep := accepted(gen.EventResult{ID: e.ID, Status: gen.EventResultStatus(results[0].Status)})
	if results[0].Status == publish.Duplicate {
		rep.status = http.StatusOK
	}
	return rep, nil
}

func isArray(body []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("["))
}

// prepareEvent sets the trace of an event, and its company to that of the token or the query. It refuses
// another company, and types that are reserved for operational events.
func (q *request) prepareEvent(e *events.Event) error {
	var problems invalid.Error
	if publish.CheckEmitted(&problems, e); problems.OrNil() != nil {
		return &problems
	}
	company, err := companyIn(q.Company, q.named, optional(e.CompanyUUID))
	if company != nil {
		e.CompanyUUID = *company
	}
	e.Trace = tracing.OfRequest(q.sent)
	return err
}

// ingestBatch accepts an array. An item that is refused does not affect the others.
func (s *server) ingestBatch(ctx context.Context, q *request, text []byte) (reply, error) {
	items, err := split(text)
	if err != nil {
		return reply{}, err
	}
	if err := s.charge(ctx, q, 1, len(items)); err != nil {
		return reply{}, err
	}
	results := make([]gen.EventItemResult, len(items))
	var refused []*problem
	refuse := func(i int, id string, err error) {
		p := problemOf(err)
		refused, results[i] = append(refused, p), rejected(id, p)
	}
	var list []events.Event
	var places []int // of the events of list, in results
	for i, item := range items {
		e, err := q.readItem(item)
		if err != nil {
			refuse(i, idOf(item), err)
			continue
		}
		list, places = append(list, e), append(places, i)
	}
	var answers []publish.Result
	if len(list) > 0 {
		if answers, err = s.opts.Publisher.Accept(ctx, list); err != nil {
			return reply{}, err
		}
	}
	for i, a := range answers {
		if a.Err != nil {
			refuse(places[i], list[i].ID, a.Err)
			continue
		}
		results[places[i]] = gen.EventItemResult{ID: list[i].ID, Status: gen.EventItemResultStatus(a.Status)}
	}
	return batchReply(results, refused)
}

// batchReply is the answer to an array: 202 when no event was refused, 207 when some were. When all were
// refused for one reason that passes, the answer is that of a single event, so that a client that
// reads only the status sends them again.
func batchReply(results []gen.EventItemResult, refused []*problem) (reply, error) {
	rep := accepted(gen.EventBatchResult{Results: results})
	if len(refused) == 0 {
		return rep, nil
	}
	first := refused[0]
	other := func(p *problem) bool { return p.code != first.code }
	if len(refused) == len(results) && first.passing() && !slices.ContainsFunc(refused, other) {
		all := *first
		all.results = results
		return reply{}, &all
	}
	rep.status = http.StatusMultiStatus
	return rep, nil
}

// split returns the items of an array and checks only its syntax. Duplicate names, deep nesting and
// invalid UTF-8 are found later and fail one item only. split stops after maxBatch items: a body could
// hold millions of tiny items, which take many times their size in memory.
func split(text []byte) (items []jsontext.Value, err error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	_, err = dec.ReadToken() // the bracket, which the caller has seen
	for err == nil && dec.PeekKind() != jsontext.KindEndArray {
		if len(items) == maxBatch {
			return nil, fieldProblem("", "TOO_MANY", "the array has more than %d events", maxBatch)
		}
		var item jsontext.Value
		item, err = dec.ReadValue()
		items = append(items, item.Clone())
	}
	if err == nil {
		_, err = dec.ReadToken() // the bracket
	}
	if err == nil {
		_, err = dec.ReadToken() // the end of the body
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return nil, syntaxProblem(e)
	}
	switch {
	case !errors.Is(err, io.EOF):
		return nil, malformed("The body is not one JSON array.")
	case len(items) == 0:
		return nil, fieldProblem("", "REQUIRED", "the array has no events")
	}
	return items, nil
}

func (q *request) readItem(item jsontext.Value) (events.Event, error) {
	var e events.Event
	if item.Kind() != jsontext.KindBeginObject {
		return e, fieldProblem("", "INVALID", "must be an event object")
	}
	if err := decodeJSON(item, &e); err != nil {
		return e, err
	}
	return e, q.prepareEvent(&e)
}

// idOf returns the id of an item that is not a valid event, or "". With the id, the emitter finds the
// item.
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

// rejected is the result of an item that was refused with p.
func rejected(id string, p *problem) gen.EventItemResult {
	result := gen.EventItemResult{
		ID: id, Status: gen.EventItemResultStatusREJECTED,
		Error: &gen.ItemError{Code: p.code, Message: p.detail, Errors: p.fields},
	}
	if !isEventID(id) {
		result.ID = ""
	}
	if p.status == http.StatusConflict {
		result.Status = gen.EventItemResultStatusCONFLICT
	}
	if p.passing() {
		result.Error.RetryAfter = new(codes()[p.code].RetryAfter)
	}
	return result
}

// ListEvents is GET /api/v1/events.
func (s *server) ListEvents(ctx context.Context, q *request, p gen.ListEventsParams) (reply, error) {
	list, err := s.eventList(q, p)
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
	rep := byCursor(list.filter.Size, content, page.Next, same[gen.Event])
	rep.bytes = 0
	for _, e := range content {
		rep.bytes += int64(len(e.Metadata) + len(e.ErrorMessage) + eventRest)
	}
	return rep, nil
}

// eventRest estimates the bytes of an event without metadata and error message.
const eventRest = 512

// eventList reads one page of a list of events.
type eventList struct {
	*server

	filter     history.Filter
	statuses   []store.EventStatus // empty: any
	deliveries store.Filter        // at least one delivery of the event matches it
	known      map[events.Ref]store.EventStatus
}

func (s *server) eventList(q *request, p gen.ListEventsParams) (*eventList, error) {
	l := &eventList{
		server: s, statuses: valuesOf[store.EventStatus](p.Status), known: map[events.Ref]store.EventStatus{},
		filter: history.Filter{
			Company: q.companies, Subscriber: p.SubscriberUUID, Types: or(p.Event, nil), From: p.From, To: p.To,
			Search: or(p.Search, ""), Cursor: textOf(p.Cursor), Size: or(p.Size, defaultSize),
		},
		deliveries: store.Filter{
			Subscriber: p.SubscriberUUID, ErrorClasses: valuesOf[string](p.ErrorClass),
			CodeFrom: or(p.StatusCodeFrom, 0), CodeTo: or(p.StatusCodeTo, 0), From: p.From, To: p.To,
		},
	}
	of := l.deliveries
	if len(l.statuses) > 0 || !l.anyDelivery() {
		l.filter.Only = l.only
		l.filter.OnlyKey = fmt.Sprint(l.statuses, of.Subscriber, of.ErrorClasses, of.CodeFrom, of.CodeTo)
	}
	if l.filter.Search != "" && q.companies == nil {
		return nil, fieldProblem("companyUuid", "REQUIRED", "is required with search")
	}
	return l, checkDeliveries(of, q.companies)
}

// anyDelivery reports whether no filter is about deliveries. The list then has events without a
// delivery too.
func (l *eventList) anyDelivery() bool {
	of := l.deliveries
	return of.Subscriber == nil && len(of.ErrorClasses)+of.CodeFrom+of.CodeTo == 0
}

// only reports which events have one of the statuses and a matching delivery.
func (l *eventList) only(ctx context.Context, refs []events.Ref) (on []bool, work int, err error) {
	sums, err := l.opts.Dispatcher.Deliveries.SumUp(ctx, refs, l.deliveries)
	if err != nil {
		return nil, 0, err
	}
	anyDelivery := l.anyDelivery()
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
	sums, err := s.opts.Dispatcher.Deliveries.SumUp(ctx, refs, store.Filter{})
	if err != nil {
		return nil, err
	}
	content := make([]gen.Event, len(items))
	for i, e := range items {
		content[i] = shownEvent(e, sums[i].Status)
	}
	return content, nil
}

func shownEvent(e events.Stored, status store.EventStatus) gen.Event {
	return gen.Event{
		ID: e.ID, CompanyUUID: e.CompanyUUID, Event: e.Type, Timestamp: e.Timestamp, Metadata: e.Metadata,
		ErrorCode: e.ErrorCode, ErrorMessage: e.ErrorMessage, AcceptedAt: e.AcceptedAt, Status: gen.EventStatus(status),
	}
}

// GetEvent is GET /api/v1/events/{id}.
func (s *server) GetEvent(ctx context.Context, q *request, id gen.EventPath) (reply, error) {
	stored, err := s.opts.Events.Get(ctx, events.Ref{Company: q.company, ID: id})
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
}

// compacted returns the problem for an event without its payload. The detail says when the event was
// accepted.
func compacted(e events.Stored) *problem {
	p := problemOf(events.ErrCompacted)
	p.detail = fmt.Sprintf("The event was accepted at %s and settled; its payload was removed.", e.AcceptedAt.Format(time.RFC3339))
	return p
}

// ListEventDeliveries is GET /api/v1/events/{id}/deliveries.
func (s *server) ListEventDeliveries(ctx context.Context, q *request, id gen.EventPath) (reply, error) {
	ref := events.Ref{Company: q.company, ID: id}
	if _, err := s.opts.Events.Get(ctx, ref); err != nil {
		return reply{}, err
	}
	list, err := s.opts.Dispatcher.Deliveries.OfEvent(ctx, ref)
	return ok(gen.EventDeliveries{Content: convertAll(list, shownDelivery)}), err
}

// ExplainEvent is GET /api/v1/events/{id}/explain.
func (s *server) ExplainEvent(ctx context.Context, q *request, id gen.EventPath) (reply, error) {
	list, err := s.opts.Inspector.Explain(ctx, events.Ref{Company: q.company, ID: id})
	return ok(gen.EventExplanation{EventID: id, CompanyUUID: q.company, Subscribers: convertAll(list, shownExplanation)}), err
}

func shownExplanation(e inspect.Explanation) gen.SubscriberExplanation {
	shown := gen.SubscriberExplanation{
		SubscriberUUID: e.Subscriber.UUID, Name: e.Subscriber.Name, CallbackURL: e.Subscriber.CallbackURL,
		Outcome: gen.SubscriberExplanationOutcome(e.Verdict), Detail: e.Detail(),
		FilterError: message(e.Err), OrderedByError: message(e.OrderErr), Body: e.Body, TransformError: message(e.TransformErr),
	}
	if e.Delivery != nil {
		shown.Delivery = new(shownDelivery(*e.Delivery))
	}
	return shown
}

// maxReplay is how many subscribers a replay may name.
const maxReplay = 1000

// ReplayEvent is POST /api/v1/events/{id}/replay.
func (s *server) ReplayEvent(ctx context.Context, q *request, id gen.EventPath, in gen.ReplayRequest) (reply, error) {
	only := or(in.SubscriberUuids, nil)
	switch {
	case in.SubscriberUuids != nil && len(only) == 0:
		return reply{}, fieldProblem("subscriberUuids", "REQUIRED", "must name a subscriber; leave it out for all of them")
	case len(only) > maxReplay:
		return reply{}, fieldProblem("subscriberUuids", "TOO_MANY", "must have at most %d subscribers", maxReplay)
	}
	list, err := s.replay(ctx, q, events.Ref{Company: q.company, ID: id}, only)
	rep := accepted(gen.EventDeliveries{Content: convertAll(list, shownDelivery)})
	return rep.withLocation("/api/v1/events/"+id+"/deliveries", q.company), err
}

// replay takes rate-limit tokens for the maximum number of deliveries of the replay, and returns the
// tokens that were not needed.
func (s *server) replay(ctx context.Context, q *request, ref events.Ref, only []uuid.UUID) ([]delivery.Delivery, error) {
	most := len(only)
	if most == 0 {
		var err error
		if _, most, err = s.opts.Registry.List(ctx, registry.Filter{Company: &ref.Company, Enabled: new(true), Size: 1}); err != nil {
			return nil, err
		}
	}
	most = max(1, most)
	if err := s.charge(ctx, q, 1, most); err != nil {
		return nil, err
	}
	list, err := s.opts.Dispatcher.Redelivery.Replay(ctx, ref, only)
	_ = s.charge(ctx, q, most, max(1, len(list))) // returning tokens is never refused
	return list, err
}

// EraseEventPayload is DELETE /api/v1/events/{id}/payload.
func (s *server) EraseEventPayload(ctx context.Context, q *request, id gen.EventPath) (reply, error) {
	return noContent(), s.opts.Dispatcher.Deliveries.Erase(ctx, events.Ref{Company: q.company, ID: id})
}
