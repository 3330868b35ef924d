package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
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
	"spendhook/subscribers/registry"
)

// developerCompany is the company of the token that --dev prints.
var developerCompany = uuid.MustParse("de7e109e-0000-4000-8000-000000000001")

const demoName = "Demo receiver"

// developerToken waits up to 30 s for the database, because a first start has no signing key until
// the database is reachable.
func (d *daemon) developerToken(ctx context.Context) (token string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	grant := auth.Grant{Subject: "developer", Company: &developerCompany, TTL: 24 * time.Hour, Scopes: developerScopes}
	err = pause.Until(ctx, 100*time.Millisecond, func() error {
		token, err = auth.Mint(d.keys, grant, time.Now())
		return err
	}, func(error) { _ = d.keys.Sync(ctx) })
	return token, err
}

var developerScopes = append([]string{auth.ScopeOperator}, companyScopes...)

// companyScopes are all scopes that a client of one company may have.
var companyScopes = slices.DeleteFunc(auth.KnownScopes(), func(scope string) bool {
	return scope == auth.ScopePlatform || scope == auth.ScopeOperator
})

// demo subscribes a receiver in this process, emits three events, and prints their deliveries. It
// also prints every later delivery to the receiver.
func (d *daemon) demo(ctx context.Context, s *show, token string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("demo: %w", err)
		}
	}()
	if err := d.loadDemoData(ctx); err != nil {
		return err
	}
	printTo := func(out io.Writer) func(received) {
		return func(e received) {
			fmt.Fprintf(out, "  POST %d   %-29s %s   signature %s\n", e.Answered, typeOf(e.Body), e.ID, verification(e))
		}
	}
	var arrived bytes.Buffer // the output of the receiver until the events are printed
	r := &receiver{status: http.StatusNoContent, print: printTo(&arrived)}
	address, err := d.listen(ctx, "127.0.0.1:0", service{name: "demo receiver", handler: r, answer: answerTimeout})
	if err != nil {
		return err
	}
	sub, err := d.demoSubscriber(ctx, "http://"+address+"/hooks")
	if err != nil {
		return err
	}
	for _, secret := range sub.Secrets {
		r.addSecret(secret.Key.Reveal())
	}
	fmt.Fprintf(s.out, "\nThree events are accepted, signed and sent to %s\n", sub.CallbackURL)
	batch := demoEvents(time.Now())
	results, err := d.publisher.Accept(ctx, batch)
	if err != nil {
		return err
	}
	var sent []delivery.Delivery
	for i, result := range results {
		if result.Err != nil {
			return result.Err
		}
		fmt.Fprintf(s.out, "  %s   %-29s %s\n", result.Status, batch[i].Type, result.ID)
		list, err := d.awaitFirstAttempts(ctx, events.Ref{Company: developerCompany, ID: result.ID})
		if err != nil {
			return err
		}
		sent = append(sent, list...)
	}
	r.mu.Lock() // the receiver waits until the lines below are printed
	defer r.mu.Unlock()
	r.print = printTo(s.out)
	fmt.Fprintf(s.out, "%s\nTheir deliveries\n", &arrived)
	for _, one := range sent {
		for _, attempt := range one.Attempts {
			fmt.Fprintf(s.out, "  %-9s  %-29s %s   attempt %d: %d\n", one.Status, one.EventType, one.ID, attempt.Number, attempt.StatusCode)
		}
	}
	s.hints(token, sent[0].PublicID())
	return nil
}

// demoSubscriber finds or creates the demo's subscriber, and sets its URL to the current port.
func (d *daemon) demoSubscriber(ctx context.Context, url string) (subscribers.Subscriber, error) {
	found, _, err := d.subscriberRegistry.List(ctx, registry.Filter{Company: &developerCompany, Name: demoName})
	if err != nil {
		return subscribers.Subscriber{}, err
	}
	ours := &subscribers.Verification{State: subscribers.StateVerified} // the receiver is of this process
	if len(found) > 0 {
		return d.subscribers.Update(ctx, developerCompany, found[0].UUID, subscribers.Settings{CallbackURL: &url, Enabled: new(true), Verified: ours})
	}
	return d.subscribers.Create(ctx, developerCompany, subscribers.Settings{
		Name: new(demoName), CallbackURL: new(url), Verified: ours,
		Events: new([]string{"PAYMENT_PAID", "CARD_CREATION_REQUEST_CREATED", "CARD_CREATION_REQUEST_ERROR"}),
	})
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

// awaitFirstAttempts waits until the outcome of every first attempt is recorded.
func (d *daemon) awaitFirstAttempts(ctx context.Context, ref events.Ref) ([]delivery.Delivery, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		list, err := d.dispatcher.Deliveries.OfEvent(ctx, ref)
		if err != nil || (len(list) > 0 && !slices.ContainsFunc(list, func(d delivery.Delivery) bool { return d.Count == 0 || d.Status == delivery.StatusDelivering })) {
			return list, err
		}
		if !pause.For(ctx, 20*time.Millisecond) {
			return nil, errors.New("the events were not delivered; see the log")
		}
	}
}

func typeOf(body []byte) string {
	var event gen.WebhookEvent
	_ = json.Unmarshal(body, &event) // "" for a body that is not an event
	return event.Event
}

type demoDataCmd struct {
	Seed           uint64 `default:"1" help:"Random seed. The same seed and counts give the same data."`
	Companies      uint16 `default:"3" help:"Number of companies."`
	Users          uint32 `default:"25" help:"Users per company."`
	Cards          uint32 `default:"60" help:"Cards per company."`
	Reimbursements uint32 `default:"500" help:"Reimbursements per company."`
}

// Run writes invented spend data that import reads.
func (c *demoDataCmd) Run(term *stdio) error {
	return importer.WriteDemoData(term.Out, importer.DemoData{
		Seed: c.Seed, Companies: int(c.Companies), Users: int(c.Users), Cards: int(c.Cards), Reimbursements: int(c.Reimbursements),
	})
}

// loadDemoData imports spend data for the developer's company. If the company has locations, it
// imports nothing, so that later changes are kept. The data fits into one transaction of an import.
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
