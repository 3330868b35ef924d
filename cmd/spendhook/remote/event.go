package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
	"spendhook/internal/terminal"
)

type eventCmd struct {
	group

	Send       eventSendCmd       `cmd:"" help:"Send one event from flags, or many from a file of lines." example:"spendhook event send --event PAYMENT_PAID --metadata '{\"amount\":\"12.50\"}'"`
	List       eventListCmd       `cmd:"" help:"List events, the newest first." example:"spendhook event list --event PAYMENT_PAID --since 2h"`
	Get        eventGetCmd        `cmd:"" help:"Show an event." example:"spendhook event get pay-4711"`
	Deliveries eventDeliveriesCmd `cmd:"" help:"List the deliveries of an event." example:"spendhook event deliveries pay-4711"`
	Explain    eventExplainCmd    `cmd:"" help:"Show for each subscriber the result of an event, or why the event was not sent." example:"spendhook event explain pay-4711"`
	Feed       eventFeedCmd       `cmd:"" help:"Read the events of a subscriber, in order of acceptance." example:"spendhook event feed 0b9d1f7e-5b7c-4c0a-9a45-1d2e3f405162 --follow -o json"`
	Replay     eventReplayCmd     `cmd:"" help:"Deliver an event again." example:"spendhook event replay pay-4711"`
	Erase      eventEraseCmd      `cmd:"" help:"Remove the payload of a settled event and the recorded answers." example:"spendhook event erase pay-4711 --yes"`
}

type eventSendCmd struct {
	ID           string    `name:"id" help:"Event id; sending the same id again is safe (default: a new UUID)."`
	Event        string    `predictor:"event-type" help:"Event type, such as PAYMENT_PAID."`
	Timestamp    time.Time `help:"Time of the event, RFC 3339 (default: now)."`
	Metadata     string    `xor:"metadata" help:"Metadata, a JSON object."`
	MetadataFile string    `xor:"metadata" local:"" type:"existingfile" help:"File with the metadata."`
	ErrorCode    string    `help:"Error code of the event."`
	ErrorMessage string    `help:"Error message of the event."`
	File         string    `short:"f" local:"" placeholder:"FILE|-" help:"NDJSON file with one event per line, instead of flags."`
	DryRun       bool      `local:"" help:"Print the request, and do not send it."`
}

// Run sends the event of the flags, or each line of the file. It returns an error if the API
// refused any event.
func (c *eventSendCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(confirmation{DryRun: c.DryRun}, ""); err != nil {
		return err
	}
	e := &emitter{session: s}
	if c.File == "" {
		return c.one(ctx, e)
	}
	flags := *c
	flags.File, flags.DryRun = "", false
	if flags != (eventSendCmd{}) {
		return UsageError("give either --file or the flags of one event, not both")
	}
	return e.stream(ctx, c.File)
}

func (c *eventSendCmd) one(ctx context.Context, e *emitter) error {
	event, err := c.event(e.session)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(event.Metadata, &map[string]json.RawMessage{}); err != nil {
		flag := "--metadata"
		if c.MetadataFile != "" {
			flag = c.MetadataFile
		}
		return UsageError(flag + " is not a JSON object: " + err.Error())
	}
	body, err := json.Marshal(event)
	if err != nil {
		return err
	}
	if err := e.send(ctx, []line{{text: body}}); err != nil {
		return err
	}
	if e.refused > 0 {
		return errors.New("the event was refused")
	}
	if e.output.Format == "name" {
		_, err = fmt.Fprintln(e.term.Out, event.ID)
		return err
	}
	answer, err := json.Marshal(map[string]string{"id": event.ID, "status": e.outcome()})
	if err != nil {
		return err
	}
	return e.output.print(e.term.Out, answer)
}

// event builds the event from the flags.
func (c *eventSendCmd) event(s *session) (event *client.EventInput, err error) {
	if c.Event == "" {
		return nil, UsageError("--event is needed, or --file")
	}
	event = fields[client.EventInput](s, *c)
	event.ID = cmp.Or(c.ID, uuid.NewString())
	if event.Timestamp.IsZero() {
		event.Timestamp = time.Now()
	}
	event.Timestamp = event.Timestamp.UTC().Truncate(time.Millisecond)
	event.Metadata = []byte(cmp.Or(c.Metadata, "{}"))
	if c.MetadataFile != "" {
		in, _, err := terminal.Open(c.MetadataFile, s.term.In)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		if event.Metadata, err = io.ReadAll(in); err != nil {
			return nil, err
		}
	}
	return event, nil
}

type eventListCmd struct {
	listFlags
	eventSearch
	deliveryFilters `set:"only=Only events with a delivery" set:"statuses=PENDING, DELIVERED, DEAD, CANCELLED, HELD, NO_SUBSCRIBER"` //nolint:staticcheck // kong takes the key several times
}

type eventSearch struct {
	Search string `placeholder:"WORDS|PATH=VALUE" help:"Only settled events of the history that have all of these words, or a field with this value, such as metadata.cardUuid=7c1e1f3a-0000-4000-8000-00000000000a."`
}

// Run lists the events.
func (c *eventListCmd) Run(ctx context.Context, s *session) error {
	t := table{{"ID", "id"}, {"EVENT", "event"}, {"STATUS", "status"}, {"AGE", "since acceptedAt"}, {"ACCEPTED", "acceptedAt"}}
	return s.list(ctx, c.listFlags, t, pages(s, s.ListEvents, c.eventSearch, c.deliveryFilters))
}

// oneEvent is the argument of a command about one event.
type oneEvent struct {
	ID string `arg:"" name:"id" predictor:"event" help:"Id of the event."`
}

type eventGetCmd struct{ oneEvent }

// Run shows the event.
func (c *eventGetCmd) Run(ctx context.Context, s *session) error {
	return s.show(s.GetEvent(ctx, c.ID, fields[client.GetEventParams](s)))
}

type eventDeliveriesCmd struct {
	oneEvent
	Watch bool `short:"w" help:"Repeat the list every 2 s until interrupted."`
}

// Run lists the deliveries of the event.
func (c *eventDeliveriesCmd) Run(ctx context.Context, s *session) error {
	return s.list(ctx, listFlags{Watch: c.Watch}, deliveryTable, func(ctx context.Context, _ page) (*http.Response, error) {
		return s.ListEventDeliveries(ctx, c.ID, fields[client.ListEventDeliveriesParams](s))
	})
}

type eventExplainCmd struct{ oneEvent }

var explainTable = table{
	{"SUBSCRIBER", "subscriberUuid"}, {"NAME", "name"}, {"OUTCOME", "outcome"}, {"DETAIL", "detail"}, {"ERROR", "filterError or orderedByError or transformError"},
}

// Run lists all subscribers with the result of the event.
func (c *eventExplainCmd) Run(ctx context.Context, s *session) error {
	return s.list(ctx, listFlags{}, explainTable, func(ctx context.Context, _ page) (*http.Response, error) {
		return s.ExplainEvent(ctx, c.ID, fields[client.ExplainEventParams](s))
	})
}

type eventReplayCmd struct {
	confirmation
	oneEvent
	SubscriberUUIDs []uuid.UUID `name:"subscriber-uuid" help:"Only to this subscriber; may repeat (default: all matching subscribers)."`
}

// Run prints the deliveries that were scheduled.
func (c *eventReplayCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, ""); err != nil {
		return err
	}
	body := client.ReplayRequest{}
	if len(c.SubscriberUUIDs) > 0 {
		body.SubscriberUuids = &c.SubscriberUUIDs
	}
	text, err := readBody(s.ReplayEvent(ctx, c.ID, fields[client.ReplayEventParams](s), body))
	if err != nil {
		return err
	}
	whole, err := parse(text)
	if err != nil {
		return err
	}
	scheduled := whole.items()
	if len(scheduled) == 0 {
		return errors.New("no subscriber matches this event; see 'spendhook event explain " + c.ID + "'")
	}
	return s.output.printList(s.term.Out, deliveryTable, scheduled)
}

type eventEraseCmd struct {
	confirmation
	oneEvent
}

// Run erases the payload of the event.
func (c *eventEraseCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, "Remove the payload of %s permanently? Its id stays known.", c.ID); err != nil {
		return err
	}
	resp, err := s.EraseEventPayload(ctx, c.ID, fields[client.EraseEventPayloadParams](s))
	return s.tell(resp, err, "erased %s", c.ID)
}
