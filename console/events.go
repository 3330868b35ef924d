package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/inspect"
	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/history"
)

// eventRow is an event with the status of its deliveries.
type eventRow struct {
	events.Stored

	Status store.EventStatus
}

// Path returns the address of the event's page.
func (r eventRow) Path() string { return eventPath(r.Ref()) }

type eventsPage struct {
	Rows  []eventRow
	Next  string
	Types []eventtype.Type
	Finds bool // there is a history to search in
}

// eventStatuses are the statuses of an event, for the filter of the list.
var eventStatuses = []string{
	string(store.EventPending), string(store.EventDelivered), string(store.EventDead),
	string(store.EventHeld), string(store.EventCancelled), string(store.EventNoSubscriber),
}

func (s *server) events(ctx context.Context, v *visit, company *uuid.UUID) (err error) {
	if id := strings.TrimSpace(v.Query("id")); id != "" {
		return s.findEvent(v, company, id)
	}
	f := history.Filter{
		Company: company, Types: v.list("event"), From: v.since(), Search: strings.TrimSpace(v.Query("search")),
		Cursor: v.Query("cursor"), Size: listSize,
	}
	page := eventsPage{Types: s.opts.Catalogue.Types(), Finds: company != nil && s.opts.Events.HasHistory()}
	if !page.Finds {
		f.Search = ""
	}
	if page.Rows, f.Cursor, err = s.eventRows(ctx, f, v.choice("status", eventStatuses...)); err != nil {
		return err
	}
	page.Next = v.next(f.Cursor)
	v.show("events", "Events", page)
	return nil
}

func (s *server) findEvent(v *visit, company *uuid.UUID, id string) error {
	if company == nil || !(events.Ref{ID: id}).Valid() {
		return events.ErrNotFound
	}
	http.Redirect(v.w, v.r, v.To(eventPath(events.Ref{Company: *company, ID: id})), http.StatusSeeOther)
	return nil
}

// eventRows reads one page of events. With a status, it reads only events with this status.
func (s *server) eventRows(ctx context.Context, f history.Filter, status string) (rows []eventRow, next string, err error) {
	if status != "" {
		f.OnlyKey = status
		f.Only = func(ctx context.Context, refs []events.Ref) (on []bool, work int, err error) {
			sums, err := s.opts.Deliveries.SumUp(ctx, refs, store.Filter{})
			if err != nil {
				return nil, 0, err
			}
			on = make([]bool, len(sums))
			for i, sum := range sums {
				on[i] = string(sum.Status) == status
				work += sum.Work
			}
			return on, work, nil
		}
	}
	page, err := s.opts.Events.List(ctx, f)
	if err != nil {
		return nil, "", err
	}
	refs := make([]events.Ref, len(page.Items))
	for i := range page.Items {
		refs[i] = page.Items[i].Ref()
	}
	sums, err := s.opts.Deliveries.SumUp(ctx, refs, store.Filter{})
	if err != nil {
		return nil, "", err
	}
	for i, e := range page.Items {
		rows = append(rows, eventRow{e, sums[i].Status})
	}
	return rows, page.Next, nil
}

// forEvent makes a handler from h, which gets the event in the path.
func forEvent(h func(ctx context.Context, v *visit, ref events.Ref) error) handle {
	return forCompany(func(ctx context.Context, v *visit, company uuid.UUID) error {
		ref := events.Ref{Company: company, ID: v.r.PathValue("id")}
		if !ref.Valid() {
			return events.ErrNotFound
		}
		return h(ctx, v, ref)
	})
}

type eventPage struct {
	Event     events.Stored
	Status    store.EventStatus
	Compacted bool
	Explained []inspect.Explanation // nil if the session may not read deliveries
	Total     int                   // explanations on all pages
	Outcomes  []outcome             // nil if there is only one page
	Back      string
	Next      string
	Payload   *payload // nil unless it is requested
}

// payload is the part of an event's payload that a page shows.
type payload struct {
	Text  string
	Bytes int
	Cut   bool
	Curl  string
}

// shownPayload bounds what a page shows of a payload, in bytes.
const shownPayload = 32 << 10

func (s *server) event(ctx context.Context, v *visit, ref events.Ref) error {
	stored, err := s.opts.Events.Get(ctx, ref)
	if err != nil {
		return err
	}
	page := eventPage{Event: stored, Compacted: stored.State == events.Compacted}
	sums, err := s.opts.Deliveries.SumUp(ctx, []events.Ref{ref}, store.Filter{})
	if err != nil {
		return err
	}
	page.Status = sums[0].Status
	if v.May(readDeliveries) && !page.Compacted {
		all, err := s.opts.Inspector.Explain(ctx, ref)
		if err != nil {
			return err
		}
		page.explain(v, all)
	}
	if v.choice("payload", "true") != "" && !page.Compacted {
		page.Payload = payloadOf(stored)
	}
	v.show("event", "Event "+ref.ID, page)
	return nil
}

// erase removes the payload of an event.
func (s *server) erase(ctx context.Context, v *visit, ref events.Ref) error {
	v.setAuditEntry("event.erase", "", &ref.Company, "event", ref.ID)
	if err := s.opts.Deliveries.Erase(ctx, ref); err != nil {
		return err
	}
	return v.done(eventPath(ref), "erased")
}

// outcome is a verdict with the number of subscribers that have it.
type outcome struct {
	Verdict inspect.Verdict
	Count   int
}

// explainedSize is the number of subscribers on one page of an event.
const explainedSize = 100

// explain selects the subscribers of the page. Subscribers with a delivery come first;
// subscribers that are not subscribed to the event type come last.
func (p *eventPage) explain(v *visit, all []inspect.Explanation) {
	var ranks [3][]inspect.Explanation
	counts := map[inspect.Verdict]int{}
	for _, e := range all {
		rank := 1
		switch {
		case e.Delivery != nil:
			rank = 0
		case e.Verdict == inspect.VerdictNotSubscribed:
			rank = 2
		}
		if counts[e.Verdict] == 0 {
			p.Outcomes = append(p.Outcomes, outcome{Verdict: e.Verdict})
		}
		counts[e.Verdict]++
		ranks[rank] = append(ranks[rank], e)
	}
	ordered := slices.Concat(ranks[0], ranks[1], ranks[2])
	at := v.number("page")
	first := min(at*explainedSize, len(ordered))
	last := min(first+explainedSize, len(ordered))
	p.Explained, p.Total = ordered[first:last], len(ordered)
	if p.Total <= explainedSize {
		p.Outcomes = nil
		return
	}
	for i := range p.Outcomes {
		p.Outcomes[i].Count = counts[p.Outcomes[i].Verdict]
	}
	slices.SortFunc(p.Outcomes, func(a, b outcome) int { return cmp.Compare(a.Count, b.Count) })
	if first > 0 {
		p.Back = v.With("page", strconv.Itoa(at-1))
	}
	if last < len(ordered) {
		p.Next = v.With("page", strconv.Itoa(at+1))
	}
}

func payloadOf(e events.Stored) *payload {
	p := &payload{Bytes: len(e.Body), Curl: curl(`"$URL"`, []string{"Content-Type: application/json", "webhook-id: " + e.ID}, e.ID, e.Body)}
	p.Text, p.Cut = indented(e.Body)
	return p
}

// eventBody downloads the body that the attempts send.
func (s *server) eventBody(ctx context.Context, v *visit, ref events.Ref) error {
	stored, err := s.opts.Events.Get(ctx, ref)
	if err != nil {
		return err
	}
	if stored.State == events.Compacted {
		return events.ErrCompacted
	}
	v.download(ref.ID+".json", stored.Body)
	return nil
}
