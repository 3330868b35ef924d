package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/auth"
	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/internal/pause"
	"spendhook/storage/importer"
	"spendhook/storage/locations"
	"spendhook/subscribers"
	"spendhook/subscribers/listing"
)

// developerCompany is the company of the token that --dev prints.
var developerCompany = uuid.MustParse("de7e109e-0000-4000-8000-000000000001")

const (
	demoName     = "Demo receiver"
	demoPatience = 10 * time.Second // for the first deliveries
)

func (d *daemon) developerToken(ctx context.Context) (string, error) {
	return auth.Mint(ctx, d.keys, auth.Grant{
		Subject: "developer", Company: &developerCompany, TTL: 24 * time.Hour, Scopes: developerScopes,
	}, time.Now())
}

var developerScopes = append([]string{auth.ScopeOperator}, companyScopes...)

// companyScopes are all that a client of one company may have.
var companyScopes = slices.DeleteFunc(auth.KnownScopes(), func(scope string) bool {
	return scope == auth.ScopePlatform || scope == auth.ScopeOperator
})

// demo subscribes a receiver in this process, emits a few events, prints their deliveries, and
// then prints everything that the receiver gets.
func (d *daemon) demo(ctx context.Context, s *show) error {
	if err := d.loadDemoData(ctx); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	r := newDemoReceiver()
	address, err := d.listen(ctx, "127.0.0.1:0", service{name: "demo receiver", handler: r, answer: answerTimeout})
	if err != nil {
		return err
	}
	sub, err := d.demoSubscriber(ctx, "http://"+address+"/hooks")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	for _, secret := range sub.LiveSecrets(time.Now()) {
		r.addSecret(secret.Reveal())
	}
	refs, err := d.emitDemo(ctx, s)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	s.heading("each is signed and sent to " + sub.CallbackURL)
	soon, cancel := context.WithTimeout(ctx, demoPatience)
	r.show(soon, s, len(refs))
	cancel()
	s.heading("their deliveries (the last one was made to fail once; it is sent again)")
	first, err := d.showDeliveries(ctx, s, refs)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	s.hints(first)
	d.background(ctx, "demo", func(ctx context.Context) { r.show(ctx, s, -1) })
	return nil
}

// demoSubscriber finds or creates the demo's subscriber, and sets its URL to the current port.
func (d *daemon) demoSubscriber(ctx context.Context, url string) (subscribers.Subscriber, error) {
	found, _, err := d.lists.List(ctx, listing.Filter{Company: &developerCompany, Name: demoName})
	if err != nil {
		return subscribers.Subscriber{}, err
	}
	if len(found) > 0 {
		return d.service.Update(ctx, developerCompany, found[0].UUID, subscribers.Settings{CallbackURL: &url, Enabled: new(true)})
	}
	return d.subscribers.Create(ctx, developerCompany, subscribers.Settings{
		Name: new(demoName), CallbackURL: new(url),
		Events: new([]string{"PAYMENT_PAID", "CARD_CREATION_REQUEST_CREATED", "CARD_CREATION_REQUEST_ERROR"}),
	})
}

func (d *daemon) emitDemo(ctx context.Context, s *show) ([]events.Ref, error) {
	batch := demoEvents(time.Now())
	results, err := d.publisher.Accept(ctx, batch)
	if err != nil {
		return nil, err
	}
	s.heading("three events are accepted")
	refs := make([]events.Ref, len(batch))
	for i, r := range results {
		if r.Err != nil {
			return nil, r.Err
		}
		s.accepted(batch[i], r.Status)
		refs[i] = events.Ref{Company: developerCompany, ID: r.ID}
	}
	return refs, nil
}

func demoEvents(now time.Time) []events.Event {
	run := "demo-" + strconv.FormatInt(now.UnixMilli(), 36)
	e := func(n, kind, metadata string) events.Event {
		return events.Event{
			ID: run + "-" + n, CompanyUUID: developerCompany, Type: kind,
			Timestamp: now.UTC().Truncate(time.Millisecond), Metadata: jsontext.Value(metadata),
		}
	}
	list := []events.Event{
		e("1", "PAYMENT_PAID", `{"paymentUuid":"7b1de0d2-60e0-4a7f-8d0c-2c9b5f6f0a01","amount":"129.90","currency":"EUR"}`),
		e("2", "CARD_CREATION_REQUEST_CREATED", `{"alias":"Travel","index":0}`),
		e("3", "CARD_CREATION_REQUEST_ERROR", `{"alias":"Marketing","index":1}`),
	}
	list[2].ErrorCode, list[2].ErrorMessage = "USER_NOT_FOUND", "The user does not exist."
	return list
}

// showDeliveries shows the deliveries once each has been attempted, and
// returns the id of the first.
func (d *daemon) showDeliveries(ctx context.Context, s *show, refs []events.Ref) (first string, err error) {
	for _, ref := range refs {
		list, err := d.attempted(ctx, ref)
		if err != nil {
			return "", err
		}
		for _, delivery := range list {
			s.delivery(delivery)
			if first == "" {
				first = delivery.PublicID()
			}
		}
	}
	return first, nil
}

// attempted waits until the outcome of every first attempt is recorded.
func (d *daemon) attempted(ctx context.Context, ref events.Ref) ([]delivery.Delivery, error) {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	for {
		list, err := d.dispatcher.Deliveries.OfEvent(ctx, ref)
		if err != nil || (len(list) > 0 && !slices.ContainsFunc(list, unattempted)) {
			return list, err
		}
		if !pause.For(ctx, 20*time.Millisecond) {
			return nil, errors.New("the events were not delivered; see the log")
		}
	}
}

func unattempted(d delivery.Delivery) bool {
	return d.Count == 0 || d.Status == delivery.StatusDelivering
}

// demoReceiver verifies deliveries as a careful receiver does, and fails the
// first attempt of each CARD_CREATION_REQUEST_ERROR, so that a retry is seen.
type demoReceiver struct {
	receiver
	arrived chan posting
	failed  sync.Map // event ids that were answered 500 once
}

// posting is a delivery as the receiver saw it.
type posting struct {
	received
	eventType string
}

func newDemoReceiver() *demoReceiver {
	r := &demoReceiver{arrived: make(chan posting, 256)}
	r.print = r.arrive
	r.verdict = r.failOnce
	return r
}

func (r *demoReceiver) arrive(got received) {
	select {
	case r.arrived <- posting{got, typeOf(got.Body)}:
	default: // it is only shown
	}
}

func (r *demoReceiver) failOnce(got received) int {
	if typeOf(got.Body) != "CARD_CREATION_REQUEST_ERROR" {
		return http.StatusNoContent
	}
	if _, again := r.failed.LoadOrStore(got.ID, true); again {
		return http.StatusNoContent
	}
	return http.StatusInternalServerError
}

func typeOf(body []byte) string {
	var event gen.WebhookEvent
	_ = json.Unmarshal(body, &event) // "" for a body that is not an event
	return event.Event
}

// show shows n deliveries, or all that come until ctx ends for a negative n.
func (r *demoReceiver) show(ctx context.Context, s *show, n int) {
	for ; n != 0; n-- {
		select {
		case p := <-r.arrived:
			s.posted(p)
		case <-ctx.Done():
			return
		}
	}
}

type demoDataCmd struct {
	Seed           uint64 `default:"1" help:"Random seed. The same seed and counts give the same data."`
	Companies      int    `default:"3" help:"Number of companies."`
	Users          int    `default:"25" help:"Users per company."`
	Locations      int    `default:"8" help:"Locations per company."`
	Cards          int    `default:"60" help:"Cards per company."`
	Reimbursements int    `default:"500" help:"Reimbursements per company."`
	Statements     int    `default:"18" help:"Billing statements per company, one per month; at most 240."`
}

// Run writes invented spend data that import reads.
func (c *demoDataCmd) Run(term *stdio) error {
	if err := c.check(); err != nil {
		return err
	}
	return importer.WriteDemoData(term.Out, importer.DemoData{
		Seed: c.Seed, Companies: c.Companies, Users: c.Users, Locations: c.Locations,
		Cards: c.Cards, Reimbursements: c.Reimbursements, Statements: c.Statements,
	})
}

func (c *demoDataCmd) check() error {
	for _, flag := range []struct {
		name  string
		value int
	}{
		{"companies", c.Companies},
		{"users", c.Users},
		{"locations", c.Locations},
		{"cards", c.Cards},
		{"reimbursements", c.Reimbursements},
		{"statements", c.Statements},
	} {
		if flag.value < 1 {
			return usageError(fmt.Sprintf("--%s must be at least 1", flag.name))
		}
	}
	if c.Statements > 240 {
		return usageError("--statements must be at most 240, 20 years")
	}
	return nil
}

// loadDemoData imports spend data for the developer's company, unless the company has some:
// later changes stay. The data fits into one transaction of an import.
func (d *daemon) loadDemoData(ctx context.Context) error {
	_, total, err := locations.New(d.storage).List(ctx, locations.Filter{Company: &developerCompany})
	if err != nil || total > 0 {
		return err
	}
	var data bytes.Buffer
	if err := importer.WriteDemoData(&data, importer.DemoData{Seed: 1, First: developerCompany, Companies: 1}); err != nil {
		return err
	}
	report, err := (&importer.Importer{DB: d.storage}).Run(ctx, &data)
	if err == nil && report.Refused > 0 {
		err = errors.New("the data was refused")
	}
	return err
}
