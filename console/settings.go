package console

import (
	"context"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/google/uuid"

	"spendhook/dispatcher/inspect"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/internal/invalid"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
)

// settings reads the form of a subscriber: the settings, and the names of the fields that were
// sent. The error is an *invalid.Error.
func (v *visit) settings() (in subscribers.Settings, fields []string, err error) {
	form := v.r.PostForm
	text := func(field string) *string {
		if !form.Has(field) {
			return nil
		}
		fields = append(fields, field)
		return new(strings.TrimSpace(strings.ReplaceAll(form.Get(field), "\r\n", "\n")))
	}
	in.Name, in.CallbackURL = text("name"), text("callbackUrl")
	if list := text("events"); list != nil { // the ticked types, and others
		all := strings.Join(append(slices.Clone(form["type"]), *list), "\n")
		chosen := strings.FieldsFunc(all, func(c rune) bool { return c == ',' || unicode.IsSpace(c) })
		slices.Sort(chosen)
		in.Events = new(slices.Compact(chosen))
	}
	if list := text("contacts"); list != nil {
		in.Contacts = new([]secret.Text)
		for c := range strings.FieldsSeq(*list) {
			*in.Contacts = append(*in.Contacts, secret.Text(c))
		}
	}
	in.Filter, in.Transform = text("filter"), text("transform")
	in.Format, in.OnDead = text("format"), text("onDead")
	if list := text("signatures"); list != nil {
		in.Signatures = new(strings.Split(*list, " "))
	}
	in.SignatureAlgorithm = text("signatureAlgorithm")
	if ordered := text("ordered"); ordered != nil {
		in.Ordered = new(*ordered == "true")
	}
	in.OrderedBy = text("orderedBy")
	in.OAuth = oauthOf(text)
	if revision := form.Get("revision"); revision != "" {
		in.Revisions = []string{revision}
	}
	var problems invalid.Error
	in.Headers = headers(&problems, text("headers"), form["header"])
	in.StopOn = numbers(&problems, "stopOn", text("stopOn"))
	in.RetrySchedule = numbers(&problems, "retrySchedule", text("retrySchedule"))
	if rate := text("perSecond"); rate != nil {
		in.RateLimit = readRate(&problems, *rate, strings.TrimSpace(form.Get("burst")))
	}
	return in, fields, problems.OrNil()
}

// headers reads one header a line; nil: they are not changed. Of the headers that the form was shown with, one without a
// line is removed, and one with callback.HiddenValue keeps its value.
func headers(problems *invalid.Error, text *string, shown []string) map[string]*secret.Text {
	if text == nil {
		return nil
	}
	changes := map[string]*secret.Text{}
	for _, name := range shown {
		changes[name] = nil
	}
	given := map[string]bool{}
	for line := range strings.Lines(*text) {
		name, value, colon := strings.Cut(strings.TrimSpace(line), ":")
		name, value = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)), strings.TrimSpace(value)
		switch {
		case name == "" && !colon:
		case !colon:
			problems.Add("headers", "INVALID", "must be a name, a colon and a value on each line")
		case given[name]:
			problems.Add("headers", "DUPLICATE", "name %s twice", name)
		case value == callback.HiddenValue && slices.Contains(shown, name):
			delete(changes, name)
		default:
			changes[name] = new(secret.Text(value))
		}
		given[name] = true
	}
	return changes
}

// oauthOf reads where an access token is fetched: nowhere without a URL. Without a secret, the stored one stays.
func oauthOf(text func(field string) *string) *callback.OAuthChange {
	change := &callback.OAuthChange{
		TokenURL: text("tokenUrl"), ClientID: text("clientId"), ClientSecret: (*secret.Text)(text("clientSecret")),
		Scope: text("scope"), Audience: text("audience"),
	}
	if change.TokenURL == nil {
		return nil
	}
	change.Remove = *change.TokenURL == ""
	if change.ClientSecret != nil && *change.ClientSecret == "" {
		change.ClientSecret = nil
	}
	return change
}

// numbers reads a field with whole numbers; nil: it was not sent.
func numbers(problems *invalid.Error, field string, text *string) *[]int {
	if text == nil {
		return nil
	}
	list := []int{}
	for word := range strings.FieldsFuncSeq(*text, func(c rune) bool { return c == ',' || unicode.IsSpace(c) }) {
		n, err := strconv.Atoi(word)
		if err != nil {
			problems.Add(field, "INVALID", "must be whole numbers, with spaces between them")
			return nil
		}
		list = append(list, n)
	}
	return &list
}

func readRate(problems *invalid.Error, perSecond, burst string) *subscribers.RateLimit {
	limit := &subscribers.RateLimit{}
	if perSecond == "" {
		return limit
	}
	var err error
	if limit.PerSecond, err = strconv.ParseFloat(perSecond, 64); err != nil || limit.PerSecond <= 0 {
		problems.Add("perSecond", "INVALID", "must be a number from 0.01 to 10,000, or empty for no limit")
	}
	if burst != "" {
		if limit.Burst, err = strconv.Atoi(burst); err != nil || limit.Burst < 1 {
			problems.Add("burst", "INVALID", "must be a whole number from 1 to 10,000, or empty")
		}
	}
	return limit
}

// asEdited returns the subscriber with the values of its form, to show the form again.
func asEdited(sub subscribers.Subscriber, in subscribers.Settings) subscribers.Subscriber {
	set(&sub.Events, in.Events)
	set(&sub.Name, in.Name)
	set(&sub.CallbackURL, in.CallbackURL)
	set(&sub.Filter, in.Filter)
	set(&sub.Transform, in.Transform)
	set(&sub.Format, in.Format)
	set(&sub.OnDead, in.OnDead)
	set(&sub.StopOn, in.StopOn)
	set(&sub.RetrySchedule, in.RetrySchedule)
	set(&sub.Signatures, in.Signatures)
	set(&sub.SignatureAlgorithm, (*subscribers.KeyAlgorithm)(in.SignatureAlgorithm))
	set(&sub.Ordered, in.Ordered)
	set(&sub.OrderedBy, in.OrderedBy)
	if in.OAuth != nil {
		sub.OAuth = &callback.OAuth{}
		set(&sub.OAuth.TokenURL, in.OAuth.TokenURL)
		set(&sub.OAuth.ClientID, in.OAuth.ClientID)
		set(&sub.OAuth.Scope, in.OAuth.Scope)
		set(&sub.OAuth.Audience, in.OAuth.Audience)
	}
	if in.RateLimit != nil && *in.RateLimit != (subscribers.RateLimit{}) {
		sub.RateLimit = in.RateLimit
	}
	return sub
}

func set[T any](field, to *T) {
	if to != nil {
		*field = *to
	}
}

// trial is the result of a filter and a transform on the latest events.
type trial struct {
	Problem string // why one of them is invalid
	Events  []triedEvent
	Matched int
}

type triedEvent struct {
	events.Stored
	inspect.Trial
}

// triedEvents is the number of events that they are tried on.
const triedEvents = 50

// try shows the result of the filter and the transform of the form on the company's latest events.
func (s *server) try(ctx context.Context, v *visit, company, id uuid.UUID) error {
	sub, err := s.opts.Subscribers.Get(ctx, company, id)
	if err != nil {
		return err
	}
	return s.showTrial(ctx, v, sub)
}

// tryNew is try for a subscriber that does not exist yet.
func (s *server) tryNew(ctx context.Context, v *visit, company uuid.UUID) error {
	return s.showTrial(ctx, v, subscribers.Subscriber{CompanyUUID: company})
}

func (s *server) showTrial(ctx context.Context, v *visit, sub subscribers.Subscriber) error {
	in, _, _ := v.settings() // both expressions are read before a field can be wrong
	tried, err := s.trialOf(ctx, v, sub, in)
	if err != nil {
		return err
	}
	page := s.sentPage(ctx, v, sub, in)
	page.New, page.Tried = sub.UUID == uuid.Nil, &tried
	v.showForm(page)
	return nil
}

func (s *server) trialOf(ctx context.Context, v *visit, sub subscribers.Subscriber, in subscribers.Settings) (out trial, err error) {
	if !v.May(readEvents) {
		return trial{Problem: "Your session may not read events, so nothing can be tried on them."}, nil
	}
	set(&sub.Events, in.Events)
	if sub, err = sub.WithExpressions(ctx, in.Filter, in.Transform); err != nil {
		return trial{Problem: err.Error()}, nil //nolint:nilerr // the page shows it
	}
	page, err := s.opts.Events.List(ctx, history.Filter{Company: &sub.CompanyUUID, Size: triedEvents})
	if err != nil {
		return out, err
	}
	for i, tried := range inspect.Try(ctx, &sub, page.Items) {
		if out.Events = append(out.Events, triedEvent{page.Items[i], tried}); tried.Matches {
			out.Matched++
		}
	}
	return out, nil
}

// answerChange sets the audit entry of a change of a subscriber, and answers the change.
func (v *visit) answerChange(action, detail, done string, company, id uuid.UUID, err error) error {
	v.setAuditEntry(action, detail, &company, "subscriber", id.String())
	if err != nil {
		return err
	}
	return v.done("/console/subscribers/"+id.String(), done)
}

func (s *server) pause(ctx context.Context, v *visit, company, id uuid.UUID) error {
	return v.answerChange("subscriber.pause", "", "paused", company, id, s.opts.Subscribers.Pause(ctx, company, id))
}

func (s *server) resume(ctx context.Context, v *visit, company, id uuid.UUID) error {
	if v.choice("drop", "true") != "" {
		v.setAuditEntry("subscriber.resume", "drop", &company, "subscriber", id.String())
		job, err := s.opts.Redelivery.Drop(ctx, company, id)
		if err != nil {
			return err
		}
		return v.done("/console/jobs/"+job.UUID.String(), "started")
	}
	return v.answerChange("subscriber.resume", "", "resumed", company, id, s.opts.Subscribers.Resume(ctx, company, id))
}

func (s *server) enable(ctx context.Context, v *visit, company, id uuid.UUID) error {
	_, err := s.opts.Subscribers.Update(ctx, company, id, subscribers.Settings{Enabled: new(true)})
	return v.answerChange("subscriber.update", "enabled", "enabled", company, id, err)
}

func (s *server) disable(ctx context.Context, v *visit, company, id uuid.UUID) error {
	_, err := s.opts.Subscribers.Update(ctx, company, id, subscribers.Settings{Enabled: new(false)})
	return v.answerChange("subscriber.update", "disabled", "disabled", company, id, err)
}

func (s *server) rotateKeys(ctx context.Context, v *visit, company uuid.UUID) error {
	v.setAuditEntry("webhook-key.rotate", "", &company, "webhook-key", company.String())
	if _, err := s.opts.Subscribers.RotateSigningKeys(ctx, company); err != nil {
		return err
	}
	return v.done("/console/subscribers", "rotated")
}

func (s *server) revokeKey(ctx context.Context, v *visit, company uuid.UUID) error {
	id := v.r.PathValue("kid")
	v.setAuditEntry("webhook-key.revoke", "", &company, "webhook-key", id)
	if err := s.opts.Subscribers.RevokeSigningKey(ctx, company, id); err != nil {
		return err
	}
	return v.done("/console/subscribers", "revoked")
}

// rotateSecret shows the new secret once. The form contains the subscriber's revision, so that
// a reload of the answer does not rotate the secret again.
func (s *server) rotateSecret(ctx context.Context, v *visit, company, id uuid.UUID) error {
	sub, err := s.opts.Subscribers.Get(ctx, company, id)
	if err != nil {
		return err
	}
	if !slices.Contains(v.r.PostForm["revision"], sub.Revision) {
		return subscribers.ErrChanged
	}
	page, err := s.readSubscriber(ctx, v, company, id) // before the rotation, so that no error can hide the new secret
	if err != nil {
		return err
	}
	v.setAuditEntry("subscriber.rotate-secret", "", &company, "subscriber", id.String())
	rotated, err := s.opts.Subscribers.RotateSecret(ctx, company, id)
	if err != nil {
		return err
	}
	page.Subscriber, page.Secret = rotated, rotated.Secrets[0].Key.Reveal()
	v.show("subscriber", page.Name, page)
	return nil
}
