package remote

import (
	"context"
	"net/http"

	"spendhook/api/client"
)

type eventTypeCmd struct {
	group

	List   eventTypeListCmd   `cmd:"" default:"withargs" help:"List the event types." example:"spendhook event-type list -o name"`
	Get    eventTypeGetCmd    `cmd:"" help:"Show an event type." example:"spendhook event-type get PAYMENT_PAID"`
	Put    eventTypePutCmd    `cmd:"" help:"Set the description, schema and example of an event type, for all companies (scope platform)." example:"spendhook event-type put PAYMENT_PAID --description 'A payment was paid.' --schema-file payment-paid.schema.json --example-file payment-paid.json"`
	Delete eventTypeDeleteCmd `cmd:"" help:"Delete the documentation of an event type (scope platform)." example:"spendhook event-type delete PAYMENT_PAID --yes"`
}

type eventTypeListCmd struct{}

// Run lists the event types.
func (c *eventTypeListCmd) Run(ctx context.Context, s *session) error {
	t := table{{"NAME", "name"}, {"DESCRIPTION", "description"}}
	return s.list(ctx, listFlags{}, t, eventTypes(s))
}

// eventTypes reads the list, which has one page.
func eventTypes(s *session) readPage {
	return func(ctx context.Context, _ page) (*http.Response, error) { return s.ListEventTypes(ctx) }
}

type eventTypeGetCmd struct {
	Name string `arg:"" help:"Event type."`
}

// Run shows the event type.
func (c *eventTypeGetCmd) Run(ctx context.Context, s *session) error {
	return s.show(s.GetEventType(ctx, c.Name))
}

type eventTypePutCmd struct {
	confirmation
	Name        string `arg:"" help:"Event type."`
	Description string `help:"Description."`
	SchemaFile  string `local:"" placeholder:"FILE|-" help:"JSON Schema 2020-12 of the metadata."`
	ExampleFile string `local:"" placeholder:"FILE|-" help:"An example of the metadata."`
	File        string `short:"f" local:"" placeholder:"FILE|-" help:"JSON file with the fields of the API, instead of flags."`
}

// Run sets the documentation of the event type.
func (c *eventTypePutCmd) Run(ctx context.Context, s *session) error {
	if c.File == "" && c.Description == "" {
		return UsageError("--description is needed, or --file")
	}
	body := client.EventTypeInput{Description: c.Description}
	if err := s.load(c.SchemaFile, &body.Schema); err != nil {
		return err
	}
	if err := s.load(c.ExampleFile, &body.Example); err != nil {
		return err
	}
	if err := s.load(c.File, &body); err != nil {
		return err
	}
	if err := s.confirm(c.confirmation, ""); err != nil {
		return err
	}
	return s.show(s.PutEventType(ctx, c.Name, body))
}

type eventTypeDeleteCmd struct {
	confirmation
	Name string `arg:"" help:"Event type."`
}

// Run removes the documentation of the event type.
func (c *eventTypeDeleteCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, "Remove the documentation of %s?", c.Name); err != nil {
		return err
	}
	resp, err := s.DeleteEventType(ctx, c.Name)
	return s.tell(resp, err, "deleted %s", c.Name)
}
