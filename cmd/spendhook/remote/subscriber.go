package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"spendhook/api/client"
	"spendhook/internal/terminal"
)

type subscriberCmd struct {
	group

	List         subscriberListCmd    `cmd:"" help:"List subscribers." example:"spendhook subscriber list --events PAYMENT_PAID --enabled=false"`
	Get          subscriberGetCmd     `cmd:"" help:"Show a subscriber." example:"spendhook subscriber get 0b9d1f7e-2c4a-4e57-8f10-6a1d3c5b7e90 -o yaml"`
	Create       subscriberCreateCmd  `cmd:"" help:"Create a subscriber. Its signing secret is printed once." example:"spendhook subscriber create --name Bookkeeping --callback-url https://books.example.com/hooks --event PAYMENT_PAID --event CARD_CREATION_REQUEST_CREATED"`
	Update       subscriberUpdateCmd  `cmd:"" help:"Change the given fields of a subscriber." example:"spendhook subscriber update 0b9d1f7e-2c4a-4e57-8f10-6a1d3c5b7e90 --enabled=true"`
	Pause        subscriberPauseCmd   `cmd:"" help:"Pause a subscriber: its deliveries wait." example:"spendhook subscriber pause 0b9d1f7e-2c4a-4e57-8f10-6a1d3c5b7e90"`
	Resume       subscriberResumeCmd  `cmd:"" help:"Resume a subscriber: send waiting deliveries, or cancel them with --drop." example:"spendhook subscriber resume 0b9d1f7e-2c4a-4e57-8f10-6a1d3c5b7e90"`
	RotateSecret subscriberRotateCmd  `cmd:"" help:"Create a new signing secret, printed once. For a while, deliveries are signed with both secrets." example:"spendhook subscriber rotate-secret 0b9d1f7e-2c4a-4e57-8f10-6a1d3c5b7e90 --yes"`
	Test         subscriberTestCmd    `cmd:"" help:"Send a signed test delivery, and show its result." example:"spendhook subscriber test 0b9d1f7e-2c4a-4e57-8f10-6a1d3c5b7e90"`
	Verify       subscriberVerifyCmd  `cmd:"" help:"Challenge the receiver, and verify its callback URL." example:"spendhook subscriber verify 0b9d1f7e-2c4a-4e57-8f10-6a1d3c5b7e90"`
	FilterTest   subscriberFilterCmd  `cmd:"" help:"Test a filter and a transform on accepted events." example:"spendhook subscriber filter-test 0b9d1f7e-2c4a-4e57-8f10-6a1d3c5b7e90 --filter 'decimal(metadata.amount) >= decimal(\"100\")'"`
	Stats        subscriberStatsCmd   `cmd:"" help:"Show delivery counts of a subscriber." example:"spendhook subscriber stats 0b9d1f7e-2c4a-4e57-8f10-6a1d3c5b7e90"`
	Recover      subscriberRecoverCmd `cmd:"" help:"Deliver events again that failed or were never sent." example:"spendhook subscriber recover 0b9d1f7e-2c4a-4e57-8f10-6a1d3c5b7e90 --since 5d --wait"`
	Delete       subscriberDeleteCmd  `cmd:"" help:"Delete a subscriber, and cancel its pending deliveries." example:"spendhook subscriber delete 0b9d1f7e-2c4a-4e57-8f10-6a1d3c5b7e90 --yes"`
}

var subscriberTable = table{
	{"UUID", "uuid"},
	{"NAME", "name"},
	{"STATE", "health.state"},
	{"PAUSED", "paused"},
	{"LAST SUCCESS", "since health.lastSuccessAt"},
	{"CALLBACK URL", "callbackUrl"},
	{"EVENTS", "events"},
}

// oneSubscriber is the argument of a command about one subscriber.
type oneSubscriber struct {
	UUID uuid.UUID `arg:"" name:"uuid" predictor:"subscriber" help:"UUID of the subscriber."`
}

type subscriberListCmd struct {
	listFlags
	UUID        *uuid.UUID `name:"uuid" help:"Only the subscriber with this UUID."`
	Name        string     `help:"Only names that contain this text, in any letter case."`
	CallbackURL string     `name:"callback-url" help:"Only this callback URL."`
	Enabled     *bool      `negatable:"" help:"Only enabled subscribers, or only disabled ones (--enabled=false)."`
	Events      []string   `name:"events" predictor:"event-type" aliases:"event" help:"Only subscribers of any of these event types; may repeat."`
}

// Run lists the subscribers.
func (c *subscriberListCmd) Run(ctx context.Context, s *session) error {
	return s.list(ctx, c.listFlags, subscriberTable, pages(s, s.ListSubscribers, *c))
}

type subscriberGetCmd struct{ oneSubscriber }

// Run shows the subscriber.
func (c *subscriberGetCmd) Run(ctx context.Context, s *session) error {
	return s.show(s.GetSubscriber(ctx, c.UUID, fields[client.GetSubscriberParams](s)))
}

// subscriberFields has the flags that create and update share.
type subscriberFields struct {
	Name          *string  `help:"Display name."`
	CallbackURL   *string  `name:"callback-url" help:"Callback URL (https)."`
	Events        []string `name:"event" predictor:"event-type" help:"Event type to receive; may repeat."`
	Enabled       *bool    `negatable:"" help:"Whether deliveries are sent."`
	Format        *string  `name:"event-format" local:"" help:"Payload format: standard, thin or cloudevents."`
	Signatures    []string `name:"signature" local:"" help:"How deliveries are signed: standard, http-message (RFC 9421); may repeat."`
	Algorithm     *string  `name:"signature-algorithm" local:"" help:"Algorithm of http-message: ed25519 or ecdsa-p256-sha256."`
	Filter        *string  `help:"CEL expression. Only events for which it is true are delivered."`
	Transform     *string  `help:"CEL expression that makes the body of deliveries, a map."`
	Ordered       *bool    `negatable:"" help:"One delivery at a time, in the order of acceptance."`
	OrderedBy     *string  `help:"CEL expression, such as metadata.cardUuid: as --ordered, among deliveries with the same value."`
	OnDead        *string  `help:"With --ordered or --ordered-by: continue or pause after a delivery is dead."`
	RetrySchedule []int    `help:"Wait after a failed attempt, in seconds; give all, as in 5,300,3600."`
	StopOn        []int    `help:"Status of an answer that ends the attempts of a delivery, such as 422; may repeat."`
	Contacts      []string `name:"contact" help:"Mail address, or https URL of a Slack-compatible chat, that is told when the subscriber is disabled; may repeat. The URL of a chat is a secret: give it in --file."`
	HeadersFile   string   `local:"" placeholder:"FILE|-" help:"File with a JSON object of headers for each delivery. They are not flags, because headers may be secrets."`
	OAuthFile     string   `name:"oauth-file" local:"" placeholder:"FILE|-" help:"File with a JSON object of tokenUrl, clientId, clientSecret, scope and audience: each delivery carries an access token of that endpoint."`
	PerSecond     *string  `name:"rate-limit-per-second" local:"" help:"Rate limit in attempts per second."`
	Burst         *int     `name:"rate-limit-burst" local:"" help:"Burst of the rate limit."`
	File          string   `short:"f" local:"" placeholder:"FILE|-" help:"JSON file with the fields of the API, instead of flags."`
}

func (f subscriberFields) rate() *client.RateLimit {
	if f.PerSecond == nil {
		return nil
	}
	return &client.RateLimit{PerSecond: json.Number(*f.PerSecond), Burst: f.Burst}
}

func (f subscriberFields) signatures() *client.Signatures {
	if len(f.Signatures) == 0 {
		return nil
	}
	return &f.Signatures
}

type subscriberCreateCmd struct {
	confirmation
	subscriberFields
}

// Run creates the subscriber.
func (c *subscriberCreateCmd) Run(ctx context.Context, s *session) error {
	if c.File == "" && (c.Name == nil || c.CallbackURL == nil || len(c.Events) == 0) {
		return UsageError("--name, --callback-url and --event are needed, or --file")
	}
	body := fields[client.SubscriberCreate](s, c.subscriberFields)
	body.RateLimit, body.Format = c.rate(), (*client.Format)(c.Format)
	body.Signatures, body.SignatureAlgorithm = c.signatures(), (*client.KeyAlgorithm)(c.Algorithm)
	if err := s.load(c.HeadersFile, &body.Headers); err != nil {
		return err
	}
	if err := s.load(c.OAuthFile, &body.OAuth); err != nil {
		return err
	}
	if err := s.load(c.File, body); err != nil {
		return err
	}
	if err := s.confirm(c.confirmation, ""); err != nil {
		return err
	}
	return s.show(s.CreateSubscriber(ctx, fields[client.CreateSubscriberParams](s), *body))
}

// load decodes a JSON file. It does nothing for the name "".
func (s *session) load(name string, into any) error {
	if name == "" {
		return nil
	}
	in, _, err := terminal.Open(name, s.term.In)
	if err != nil {
		return err
	}
	defer in.Close()
	d := json.NewDecoder(in)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return UsageError(fmt.Sprintf("%s: %v", name, err))
	}
	return nil
}

type subscriberUpdateCmd struct {
	confirmation
	oneSubscriber
	subscriberFields
	NoRetrySchedule bool    `help:"Retry by the schedule of the installation."`
	NoStopOn        bool    `help:"Let no status end the attempts of a delivery."`
	NoContacts      bool    `help:"Remove all contacts."`
	NoRateLimit     bool    `help:"Remove the rate limit."`
	NoOAuth         bool    `name:"no-oauth" help:"Send no access token any more."`
	IfMatch         *string `help:"Fail unless the current ETag is this one."`
}

// Run changes the subscriber.
func (c *subscriberUpdateCmd) Run(ctx context.Context, s *session) error {
	body := fields[client.SubscriberUpdate](s, c.subscriberFields)
	body.Format = (*client.Format)(c.Format)
	body.Signatures, body.SignatureAlgorithm = c.signatures(), (*client.KeyAlgorithm)(c.Algorithm)
	if rate := c.rate(); rate != nil {
		body.RateLimit, _ = json.Marshal(rate) // encoding cannot fail
	}
	if c.NoRetrySchedule {
		body.RetrySchedule = &client.RetrySchedule{}
	}
	if c.NoStopOn {
		body.StopOn = &client.StopOn{}
	}
	if c.NoContacts {
		body.Contacts = &client.Contacts{}
	}
	if c.NoRateLimit {
		body.RateLimit = json.RawMessage("null")
	}
	if c.NoOAuth {
		body.OAuth = json.RawMessage("null")
	}
	if err := s.load(c.HeadersFile, &body.Headers); err != nil {
		return err
	}
	if err := s.load(c.OAuthFile, &body.OAuth); err != nil {
		return err
	}
	if err := s.load(c.File, body); err != nil {
		return err
	}
	if err := s.confirm(c.confirmation, ""); err != nil {
		return err
	}
	params := fields[client.UpdateSubscriberParams](s)
	params.IfMatch = c.IfMatch
	return s.show(s.UpdateSubscriber(ctx, c.UUID, params, *body))
}

type subscriberPauseCmd struct{ oneSubscriber }

// Run pauses the subscriber.
func (c *subscriberPauseCmd) Run(ctx context.Context, s *session) error {
	return s.show(s.PauseSubscriber(ctx, c.UUID, fields[client.PauseSubscriberParams](s)))
}

type subscriberResumeCmd struct {
	confirmation
	oneSubscriber
	Drop bool `help:"Cancel the waiting deliveries."`
}

// Run resumes the subscriber.
func (c *subscriberResumeCmd) Run(ctx context.Context, s *session) error {
	question := ""
	if c.Drop {
		question = "Cancel all waiting deliveries of subscriber %s?"
	}
	if err := s.confirm(c.confirmation, question, c.UUID); err != nil {
		return err
	}
	return s.show(s.ResumeSubscriber(ctx, c.UUID, fields[client.ResumeSubscriberParams](s), client.ResumeRequest{Drop: &c.Drop}))
}

type subscriberRotateCmd struct {
	confirmation
	oneSubscriber
}

// Run gives the subscriber a new secret.
func (c *subscriberRotateCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, "Give subscriber %s a new secret?", c.UUID); err != nil {
		return err
	}
	return s.show(s.RotateSubscriberSecret(ctx, c.UUID, fields[client.RotateSubscriberSecretParams](s)))
}

type subscriberTestCmd struct {
	confirmation
	oneSubscriber
}

// Run sends a test delivery. It returns an error if the receiver did not accept the delivery.
func (c *subscriberTestCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, ""); err != nil {
		return err
	}
	text, err := readBody(s.TestSubscriber(ctx, c.UUID, fields[client.TestSubscriberParams](s)))
	if err != nil {
		return err
	}
	if err := s.output.print(s.term.Out, text); err != nil {
		return err
	}
	if whole, err := parse(text); err != nil || whole.at("delivered") != "true" {
		return errors.New("the test was not delivered")
	}
	return nil
}

type subscriberVerifyCmd struct{ oneSubscriber }

// Run challenges the receiver.
func (c *subscriberVerifyCmd) Run(ctx context.Context, s *session) error {
	return s.show(s.VerifySubscriber(ctx, c.UUID, fields[client.VerifySubscriberParams](s)))
}

type subscriberFilterCmd struct {
	oneSubscriber
	Filter    *string `help:"CEL expression (default: the filter of the subscriber)."`
	Transform *string `help:"CEL expression (default: the transform of the subscriber)."`
	EventID   *string `name:"event-id" help:"Id of the event to test (default: the last 100 events)."`
}

// Run prints for each event whether it matches the filter, and what the transform makes of it.
func (c *subscriberFilterCmd) Run(ctx context.Context, s *session) error {
	t := table{{"EVENT ID", "eventId"}, {"EVENT", "event"}, {"MATCHES", "matches"}, {"ERROR", "error"}, {"BODY", "body"}, {"TRANSFORM ERROR", "transformError"}}
	return s.list(ctx, listFlags{}, t, func(ctx context.Context, _ page) (*http.Response, error) {
		return s.TestSubscriberFilter(ctx, c.UUID, fields[client.TestSubscriberFilterParams](s), client.FilterTest{Filter: c.Filter, Transform: c.Transform, EventID: c.EventID})
	})
}

type subscriberStatsCmd struct{ oneSubscriber }

// Run shows the delivery counts of the subscriber.
func (c *subscriberStatsCmd) Run(ctx context.Context, s *session) error {
	return s.show(s.GetSubscriberStats(ctx, c.UUID, fields[client.GetSubscriberStatsParams](s)))
}

type subscriberRecoverCmd struct {
	oneSubscriber
	Since    moment   `required:"" help:"Events accepted since this time, or since this long ago (2h, 3d)."`
	Until    *moment  `help:"End of the time range (default: now)."`
	Statuses []string `name:"status" help:"Statuses of deliveries to send again: PENDING, RETRYING, DELIVERED, DEAD or CANCELLED (default: DEAD); may repeat. Events that were never sent because the subscriber was disabled are always included."`
	DryRun   bool     `help:"Count, and send nothing."`
	Wait     bool     `local:"" help:"Show the progress until the job ends."`
}

// Run starts the recovery job.
func (c *subscriberRecoverCmd) Run(ctx context.Context, s *session) error {
	body := fields[client.RecoverRequest](s, *c)
	resp, err := s.RecoverSubscriber(ctx, c.UUID, fields[client.RecoverSubscriberParams](s), *body)
	return s.printJob(ctx, c.Wait, deliveryJob, resp, err)
}

type subscriberDeleteCmd struct {
	confirmation
	oneSubscriber
	IfMatch *string `help:"Fail unless the current ETag is this one."`
}

// Run deletes the subscriber.
func (c *subscriberDeleteCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, "Delete subscriber %s and cancel its pending deliveries?", c.UUID); err != nil {
		return err
	}
	params := fields[client.DeleteSubscriberParams](s)
	params.IfMatch = c.IfMatch
	resp, err := s.DeleteSubscriber(ctx, c.UUID, params)
	return s.tell(resp, err, "deleted")
}
