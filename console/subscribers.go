package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/traffic"
	"spendhook/events/eventtype"
	"spendhook/events/publish"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
)

// subscriberRow is a subscriber with its health and traffic.
type subscriberRow struct {
	subscribers.Subscriber

	State  string // healthy, failing, paused or disabled
	Health health.Health
	Stats  store.Stats
	Hour   []traffic.Point // of the last hour; empty without traffic
}

// Unverified is that of the Subscriber, for templates, which cannot take its address.
func (r subscriberRow) Unverified() bool { return r.Subscriber.Unverified() }

// NextAt returns the time of the next attempt, and nil if no delivery waits for its time.
func (r subscriberRow) NextAt() *time.Time {
	if r.State == "paused" || r.State == "disabled" {
		return nil
	}
	return r.Stats.NextAt
}

// Last returns the sums of the last hour.
func (r subscriberRow) Last() traffic.Point { return traffic.Sum(r.Hour) }

type subscribersPage struct {
	Rows       []subscriberRow
	Keys       []subscribers.SigningKey // of the company
	Locked     bool                     // Keys cannot be decrypted
	Total      int
	First      int // number of the first row; the first one of the list is 1
	Back, Next string
}

func (s *server) subscribers(ctx context.Context, v *visit, company *uuid.UUID) (err error) {
	f := registry.Filter{Company: company, Name: v.Query("name"), Page: v.number("page"), Size: listSize}
	if strings.Contains(f.Name, "://") {
		f.Name, f.CallbackURL = "", f.Name
	}
	if id, err := uuid.Parse(f.Name); err == nil {
		f.Name, f.UUID = "", &id
	}
	switch state := v.choice("state", "enabled", "disabled", "failing", "paused"); {
	case state == "enabled":
		f.Enabled = new(true)
	case state == "disabled":
		f.Enabled = new(false)
	case state != "" && company != nil:
		if f.Among, err = s.inState(ctx, *company, state); err != nil {
			return err
		}
	}
	if event := v.Query("event"); event != "" {
		f.Events = []string{event}
	}
	items, total, err := s.opts.Registry.List(ctx, f)
	if err != nil {
		return err
	}
	page := subscribersPage{Total: total, First: f.Page*f.Size + 1}
	if page.Rows, err = s.subscriberRows(ctx, items); err != nil {
		return err
	}
	if err := s.addTraffic(ctx, page.Rows); err != nil {
		return err
	}
	if company != nil {
		page.Keys, err = s.opts.Subscribers.SigningKeys(ctx, *company)
		page.Locked = errors.Is(err, subscribers.ErrLocked)
		if err != nil && !errors.Is(err, subscribers.ErrNoSigningKey) && !page.Locked {
			return err
		}
	}
	if f.Page > 0 {
		page.Back = v.With("page", strconv.Itoa(f.Page-1))
	}
	if (f.Page+1)*f.Size < total {
		page.Next = v.With("page", strconv.Itoa(f.Page+1))
	}
	v.show("subscribers", "Subscribers", page)
	return nil
}

// inState returns the subscribers of a company in a state other than healthy.
func (s *server) inState(ctx context.Context, company uuid.UUID, state string) (map[uuid.UUID]bool, error) {
	_, states, err := s.states(ctx, company)
	among := map[uuid.UUID]bool{}
	for id, is := range states {
		if is == state {
			among[id] = true
		}
	}
	return among, err
}

// states returns the subscribers of a company, and the states of those that are not healthy.
func (s *server) states(ctx context.Context, company uuid.UUID) ([]*subscribers.Subscriber, map[uuid.UUID]string, error) {
	subs, err := s.opts.Registry.Current(ctx, company)
	if err != nil {
		return nil, nil, err
	}
	failing, paused, err := s.opts.Health.Troubled(ctx, company)
	return subs, unhealthyStates(subs, failing, paused), err
}

// subscriberRows adds health and traffic to subscribers, in two round trips for each company.
func (s *server) subscriberRows(ctx context.Context, items []subscribers.Subscriber) ([]subscriberRow, error) {
	rows := make([]subscriberRow, len(items))
	for i, sub := range items {
		rows[i].Subscriber = sub
	}
	return rows, byCompany(rows, func(company uuid.UUID, ids []uuid.UUID, of []*subscriberRow) error {
		known, err := s.opts.Health.Of(ctx, company, ids...)
		if err != nil {
			return err
		}
		stats, err := s.opts.Deliveries.Stats(ctx, company, ids...)
		if err != nil {
			return err
		}
		for i, row := range of {
			row.Health, row.Stats = known[ids[i]], stats[i]
			row.State = stateOf(&row.Subscriber, row.Health)
		}
		return nil
	})
}

// addTraffic adds the traffic of the last hour, in one round trip for each company.
func (s *server) addTraffic(ctx context.Context, rows []subscriberRow) error {
	return byCompany(rows, func(company uuid.UUID, ids []uuid.UUID, of []*subscriberRow) error {
		hours, err := s.opts.Traffic.LastHour(ctx, company, ids...)
		for i := range hours {
			of[i].Hour = hours[i]
		}
		return err
	})
}

// byCompany calls add with the rows of each company.
func byCompany(rows []subscriberRow, add func(company uuid.UUID, ids []uuid.UUID, of []*subscriberRow) error) error {
	ids, of := map[uuid.UUID][]uuid.UUID{}, map[uuid.UUID][]*subscriberRow{}
	for i := range rows {
		company := rows[i].CompanyUUID
		ids[company], of[company] = append(ids[company], rows[i].UUID), append(of[company], &rows[i])
	}
	for company := range ids {
		if err := add(company, ids[company], of[company]); err != nil {
			return err
		}
	}
	return nil
}

func stateOf(sub *subscribers.Subscriber, h health.Health) string {
	switch {
	case !sub.Enabled:
		return "disabled"
	case h.PausedAt != nil:
		return "paused"
	case h.State == "failing":
		return "failing"
	}
	return "healthy"
}

type subscriberPage struct {
	subscriberRow

	Damaged bool              // the certificate
	Contact map[string]string // the state of each contact, by its address
	Recent  []deliveryRow
	Test    *inspect.TestResult
	Refused string // why the receiver was not verified just now
	Secret  string // just rotated
	Range   chartRange
	Results []resultStretch
	States  []stateStretch
	Changes []health.Change // the latest first
	Charts  []chart
}

func (s *server) subscriber(ctx context.Context, v *visit, company, id uuid.UUID) error {
	page, err := s.readSubscriber(ctx, v, company, id)
	if err != nil {
		return err
	}
	v.show("subscriber", page.Name, page)
	return nil
}

func (s *server) readSubscriber(ctx context.Context, v *visit, company, id uuid.UUID) (page subscriberPage, err error) {
	sub, err := s.opts.Subscribers.Get(ctx, company, id)
	if err != nil {
		return page, err
	}
	rows, err := s.subscriberRows(ctx, []subscribers.Subscriber{sub})
	if err != nil {
		return page, err
	}
	page.subscriberRow = rows[0]
	if page.Contact, err = s.opts.Contacts.States(ctx, company, sub.Contacts...); err != nil {
		return page, err
	}
	page.Certificate, err = s.opts.Certificates.Of(id).Get(ctx, company)
	page.Damaged = errors.Is(err, certificate.ErrDamaged)
	if err != nil && !page.Damaged && !errors.Is(err, certificate.ErrNotFound) {
		return page, err
	}
	series, err := s.opts.Traffic.Read(ctx, &company, &id)
	if err != nil {
		return page, err
	}
	page.Range = v.chartRange(series)
	history, err := s.opts.Health.History(ctx, company, id)
	if err != nil {
		return page, err
	}
	page.States = stateTimeline(page.Range.Points, history, page.State, knownSince(sub.CreatedAt, history), s.opts.Now())
	page.Changes = latest(history, mostChanges)
	page.Results, page.Charts = resultTimeline(page.Range.Points), subscriberCharts(page.Range)
	if v.May(readDeliveries) {
		recent, err := s.opts.Deliveries.List(ctx, store.Filter{Company: &company, Subscriber: &id, Size: 10})
		if err != nil {
			return page, err
		}
		page.Recent, err = s.deliveryRows(ctx, recent.Items)
		return page, err
	}
	return page, nil
}

// mostChanges is the number of changes on the page of a subscriber.
const mostChanges = 5

func latest(history []health.Change, n int) []health.Change {
	history = slices.Clone(history[max(0, len(history)-n):])
	slices.Reverse(history)
	return history
}

// editPage is the form of a subscriber.
type editPage struct {
	subscribers.Subscriber

	New       bool
	HasSecret bool // the stored subscriber has an OAuth client secret
	Types     []chosenType
	Patterns  string     // event types that are not in the catalogue, and patterns
	Addresses string     // of the contacts
	Lines     string     // of the headers
	Sent      url.Values // the refused form; nil: the page shows what is stored
	Problem   *problem
	Tried     *trial
}

// chosenType is an event type of the catalogue.
type chosenType struct {
	eventtype.Type

	Chosen bool
}

// Path returns where the form is sent, without its last part.
func (p editPage) Path() string {
	if p.New {
		return "/console/subscribers/new"
	}
	return "/console/subscribers/" + p.UUID.String()
}

func (s *server) editSubscriber(ctx context.Context, v *visit, company, id uuid.UUID) error {
	sub, err := s.opts.Subscribers.Get(ctx, company, id)
	if err != nil {
		return err
	}
	v.showForm(s.newEditPage(ctx, sub))
	return nil
}

// newSubscriber shows an empty form, with the event type in the query.
func (s *server) newSubscriber(ctx context.Context, v *visit, _ uuid.UUID) error {
	page := s.newEditPage(ctx, subscribers.Subscriber{Events: v.list("event")})
	page.New = true
	v.showForm(page)
	return nil
}

// showForm shows the form of a subscriber. With a problem, its status is that of the answer.
func (v *visit) showForm(page editPage) {
	status, title := http.StatusOK, "Edit "+page.Name
	if page.New {
		title = "New subscriber"
	}
	if page.Problem != nil {
		status = page.Problem.Status
	}
	v.render(status, "edit", title, page)
}

func (s *server) newEditPage(ctx context.Context, sub subscribers.Subscriber) editPage {
	page := editPage{Subscriber: sub, HasSecret: sub.OAuth != nil}
	for _, t := range s.eventTypeList(ctx) {
		page.Types = append(page.Types, chosenType{t, slices.Contains(sub.Events, t.Name)})
	}
	for _, name := range sub.Events {
		if !slices.ContainsFunc(page.Types, func(t chosenType) bool { return t.Name == name }) {
			page.Patterns += name + "\n"
		}
	}
	for _, c := range sub.Contacts {
		page.Addresses += c.Address + "\n"
	}
	for _, h := range sub.Headers {
		page.Lines += h.Name + ": " + callback.HiddenValue + "\n"
	}
	return page
}

// sentPage is newEditPage with what the form sent, to show the form again.
func (s *server) sentPage(ctx context.Context, v *visit, sub subscribers.Subscriber, in subscribers.Settings) editPage {
	page := s.newEditPage(ctx, asEdited(sub, in))
	page.Sent, page.Revision, page.HasSecret = v.r.PostForm, v.r.PostFormValue("revision"), sub.OAuth != nil
	return page
}

// Was returns what a field had in the refused form, or else its stored value.
func (p editPage) Was(field, stored string) string {
	if p.Sent.Has(field) {
		return p.Sent.Get(field)
	}
	return stored
}

// Rate returns the rate limit for the form, and "" without one.
func (p editPage) Rate() string {
	if p.RateLimit == nil {
		return ""
	}
	return trimFloat(p.RateLimit.PerSecond)
}

// Statuses returns the statuses that end the attempts of a delivery, for the form.
func (p editPage) Statuses() string { return strings.Trim(fmt.Sprint(p.StopOn), "[]") }

// Waits returns the schedule of retries in seconds, for the form.
func (p editPage) Waits() string { return strings.Trim(fmt.Sprint(p.RetrySchedule), "[]") }

// Burst returns the burst of the rate limit for the form, and "" without a limit.
func (p editPage) Burst() string {
	if p.RateLimit == nil {
		return ""
	}
	return strconv.Itoa(p.RateLimit.Burst)
}

func (s *server) updateSubscriber(ctx context.Context, v *visit, company, id uuid.UUID) error {
	settings, fields, err := v.settings()
	if err == nil {
		v.setAuditEntry("subscriber.update", "", &company, "subscriber", id.String(), fields...)
		_, err = s.opts.Challenger.Update(ctx, company, id, settings)
	}
	if err == nil {
		return v.done("/console/subscribers/"+id.String(), "updated")
	}
	p, refused := refusal(err)
	if !refused || p.Status == http.StatusNotFound {
		return err
	}
	sub, readErr := s.opts.Subscribers.Get(ctx, company, id)
	if readErr != nil {
		return readErr
	}
	v.entry = nil // it was refused
	page := s.sentPage(ctx, v, sub, settings)
	page.Problem = &p
	v.showForm(page)
	return nil
}

// createSubscriber shows the signing secret once. A reload of the answer creates nothing: the callback URL is taken.
func (s *server) createSubscriber(ctx context.Context, v *visit, company uuid.UUID) error {
	settings, _, err := v.settings()
	var sub subscribers.Subscriber
	if err == nil && s.opts.Full(company) {
		err = publish.ErrStorageFull
	}
	if err == nil {
		v.setAuditEntry("subscriber.create", "", &company, "subscriber", "")
		sub, err = s.opts.Subscribers.Create(ctx, company, settings)
	}
	if p, refused := refusal(err); refused {
		v.entry = nil
		page := s.sentPage(ctx, v, subscribers.Subscriber{}, settings)
		page.New, page.Problem = true, &p
		v.showForm(page)
		return nil
	}
	if err != nil {
		return err
	}
	v.entry.Target.IDs = []string{sub.UUID.String()}
	v.show("created", "Subscriber created", createdPage{&sub, sub.Secrets[0].Key.Reveal()})
	return nil
}

// createdPage has the secret of a new subscriber.
type createdPage struct {
	*subscribers.Subscriber

	Secret string
}

// deleteSubscriber deletes the subscriber that the form was shown with, not one that was changed since.
func (s *server) deleteSubscriber(ctx context.Context, v *visit, company, id uuid.UUID) error {
	revision := v.field("revision")
	if revision == "" {
		return subscribers.ErrChanged
	}
	v.setAuditEntry("subscriber.delete", "", &company, "subscriber", id.String())
	if err := s.opts.Subscribers.Delete(ctx, company, id, revision); err != nil {
		return err
	}
	return v.done("/console/subscribers", "deleted")
}
