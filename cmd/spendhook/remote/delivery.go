package remote

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
)

var deliveryTable = table{
	{"ID", "id"},
	{"STATUS", "status"},
	{"ANSWER", "statusCode or error"},
	{"TRIES", "attemptCount"},
	{"NEXT", "until nextAttemptAt"},
	{"AGE", "since createdAt"},
	{"EVENT", "event"},
	{"REASON", "reason"},
}

var attemptTable = table{
	{"ATTEMPT", "number"},
	{"STARTED", "startedAt"},
	{"MS", "durationMs"},
	{"STATUS", "statusCode"},
	{"ERROR", "error"},
	{"ANSWER", "responseBody or transformError"},
}

type deliveryCmd struct {
	group

	List   deliveryListCmd   `cmd:"" help:"List deliveries, the newest first." example:"spendhook delivery list --status DEAD --since 7d --all"`
	Get    deliveryGetCmd    `cmd:"" help:"Show a delivery with its attempts." example:"spendhook delivery get pay-4711.0b9d1f7e-2c4a-4e57-8f10-6a1d3c5b7e90"`
	Cancel deliveryCancelCmd `cmd:"" help:"Cancel all waiting deliveries that match filters." example:"spendhook delivery cancel --event CARD_ISSUED --since 2h --dry-run"`
	Retry  deliveryRetryCmd  `cmd:"" help:"Retry a delivery now, or all deliveries that match filters." example:"spendhook delivery retry pay-4711.0b9d1f7e-2c4a-4e57-8f10-6a1d3c5b7e90"`
}

// deliveryFilters has the filters that lists of events and of deliveries share. The tag "set" of a
// list replaces ${only} and ${statuses} in the help texts.
type deliveryFilters struct {
	SubscriberUUID *uuid.UUID `name:"subscriber-uuid" predictor:"subscriber" help:"${only} to this subscriber."`
	Event          []string   `predictor:"event-type" aliases:"events" help:"Only these event types; may repeat."`
	Status         []string   `help:"Only these statuses: ${statuses}; may repeat."`
	ErrorClass     []string   `help:"${only} whose last attempt ended with this error, such as timeout, connect, tls or http_5xx; may repeat."`
	StatusCodeFrom *int       `help:"${only} whose last attempt was answered with this status code or above."`
	StatusCodeTo   *int       `help:"${only} whose last attempt was answered with this status code or below."`
	From           *moment    `name:"since" aliases:"from" help:"Events accepted since this time, since this long ago (2h, 3d), or since the beginning of today, yesterday or a date."`
	To             *moment    `name:"until" aliases:"to" help:"Events accepted until this time, until this long ago (2h, 3d), or until the beginning of today, yesterday or a date."`
}

type deliveryListCmd struct {
	listFlags
	deliveryFilters `set:"only=Only deliveries" set:"statuses=PENDING, DELIVERING, RETRYING, DELIVERED, DEAD, CANCELLED"` //nolint:staticcheck // kong takes the key several times
}

// Run lists the deliveries.
func (c *deliveryListCmd) Run(ctx context.Context, s *session) error {
	return s.list(ctx, c.listFlags, deliveryTable, pages(s, s.ListDeliveries, c.deliveryFilters))
}

type deliveryGetCmd struct {
	ID string `arg:"" name:"id" predictor:"delivery" help:"Id of the delivery."`
}

// Run shows the delivery.
func (c *deliveryGetCmd) Run(ctx context.Context, s *session) error {
	text, err := readBody(s.GetDelivery(ctx, c.ID, fields[client.GetDeliveryParams](s)))
	if err != nil {
		return err
	}
	return s.output.printWith(s.term.Out, text, "attempts", attemptTable)
}

type deliveryRetryCmd struct {
	deliveryFilters `set:"only=Only deliveries" set:"statuses=PENDING, DELIVERING, RETRYING, DELIVERED, DEAD, CANCELLED"` //nolint:staticcheck // kong takes the key several times

	ID string `arg:"" optional:"" name:"id" predictor:"delivery" help:"Id of the delivery. Without an id, all deliveries that match the filters; at least one filter is required."`
	bulk

	DryRun bool `help:"For one delivery, print the request. For many, count the deliveries. Nothing is retried."`
}

// Run retries one delivery, or starts a job that retries many.
func (c *deliveryRetryCmd) Run(ctx context.Context, s *session) error {
	many := !reflect.ValueOf(c.deliveryFilters).IsZero()
	switch {
	case many == (c.ID != ""):
		return UsageError("name a delivery, or give filters such as --status DEAD; see 'spendhook delivery list'")
	case many:
		return c.many(ctx, s)
	}
	if err := s.confirm(confirmation{DryRun: c.DryRun}, ""); err != nil {
		return err
	}
	return s.show(s.RetryDelivery(ctx, c.ID, fields[client.RetryDeliveryParams](s)))
}

func (c *deliveryRetryCmd) many(ctx context.Context, s *session) error {
	return c.change(ctx, s, "Retry", c.deliveryFilters, c.DryRun, func(body client.BulkRequest) (*http.Response, error) {
		return s.RetryDeliveries(ctx, fields[client.RetryDeliveriesParams](s), body)
	})
}

// bulk has the flags of commands that change many deliveries.
type bulk struct {
	Yes  bool `short:"y" help:"Do not ask for confirmation."`
	Wait bool `help:"Show the progress until the job ends."`
}

const cancelVerb = "Cancel"

// change starts a job that changes the deliveries that match the filters, or counts them. Without --yes it counts them
// first, and asks.
func (c *bulk) change(ctx context.Context, s *session, verb string, of deliveryFilters, dryRun bool, send func(client.BulkRequest) (*http.Response, error)) error {
	body := *fields[client.BulkRequest](s, of)
	if !c.Yes && !dryRun {
		body.DryRun = new(true)
		text, err := readBody(send(body))
		if err != nil {
			return err
		}
		var counted client.Job
		if err := json.Unmarshal(text, &counted); err != nil {
			return err
		}
		atLeast := ""
		if counted.FinishedAt == nil { // the count goes on, and would delay the change
			atLeast = "at least "
			within, cancel := context.WithTimeout(ctx, 3*time.Second)
			_, _ = readBody(s.CancelJob(within, counted.UUID, fields[client.CancelJobParams](s)))
			cancel()
		}
		if verb == cancelVerb { // what waits in the log is not counted
			atLeast = "at least "
		}
		if err := s.confirm(confirmation{}, "%s all deliveries that match these filters (%s%d)?", verb, atLeast, counted.Changed); err != nil {
			return err
		}
	}
	body.DryRun = &dryRun
	resp, err := send(body)
	return s.printJob(ctx, c.Wait, deliveryJob, resp, err)
}

type deliveryCancelCmd struct {
	deliveryFilters `set:"only=Only deliveries" set:"statuses=PENDING, RETRYING"` //nolint:staticcheck // kong takes the key several times

	bulk

	DryRun bool `help:"Count the deliveries. Nothing is cancelled."`
}

// Run starts a job that cancels deliveries.
func (c *deliveryCancelCmd) Run(ctx context.Context, s *session) error {
	if reflect.ValueOf(c.deliveryFilters).IsZero() {
		return UsageError("give filters such as --event CARD_ISSUED; see 'spendhook delivery list'")
	}
	return c.change(ctx, s, cancelVerb, c.deliveryFilters, c.DryRun, func(body client.BulkRequest) (*http.Response, error) {
		return s.CancelDeliveries(ctx, fields[client.CancelDeliveriesParams](s), body)
	})
}
