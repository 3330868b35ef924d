package console

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/internal/invalid"
	"spendhook/subscribers"
	"spendhook/subscribers/filter"
)

// edit has the values of a subscriber's form.
type edit struct{ subscribers.Settings }

// settings reads the form of a subscriber: its values, and the names of the sent fields.
// The error is an *invalid.Error.
func (v *visit) settings() (in edit, fields []string, err error) {
	form := v.r.PostForm
	text := func(field string) *string {
		if !form.Has(field) {
			return nil
		}
		fields = append(fields, field)
		return new(strings.TrimSpace(strings.ReplaceAll(form.Get(field), "\r\n", "\n")))
	}
	in.Name, in.CallbackURL = text("name"), text("callbackUrl")
	if list := text("events"); list != nil {
		in.Events = new(strings.FieldsFunc(*list, func(c rune) bool { return c == '\n' || c == ',' || c == ' ' || c == '\t' }))
	}
	in.Filter, in.Format, in.OnDead = text("filter"), text("format"), text("onDead")
	if ordered := text("ordered"); ordered != nil {
		in.Ordered = new(*ordered == "true")
	}
	if revision := form.Get("revision"); revision != "" {
		in.Revisions = []string{revision}
	}
	if rate := text("perSecond"); rate != nil {
		if in.RateLimit, err = readRate(*rate, strings.TrimSpace(form.Get("burst"))); err != nil {
			return in, fields, err
		}
	}
	return in, fields, nil
}

func readRate(perSecond, burst string) (*subscribers.RateLimit, error) {
	limit := &subscribers.RateLimit{}
	if perSecond == "" {
		return limit, nil
	}
	var problems invalid.Error
	var err error
	if limit.PerSecond, err = strconv.ParseFloat(perSecond, 64); err != nil || limit.PerSecond <= 0 {
		problems.Add("perSecond", "INVALID", "must be a number from 0.01 to 10,000, or empty for no limit")
	}
	if burst != "" {
		if limit.Burst, err = strconv.Atoi(burst); err != nil || limit.Burst < 1 {
			problems.Add("burst", "INVALID", "must be a whole number from 1 to 10,000, or empty")
		}
	}
	return limit, problems.OrNil()
}

// appliedTo is the subscriber as the form has it, for the form to be shown again.
func (in edit) appliedTo(sub subscribers.Subscriber) subscribers.Subscriber {
	set(&sub.Name, in.Name)
	set(&sub.CallbackURL, in.CallbackURL)
	set(&sub.Filter, in.Filter)
	set(&sub.Format, in.Format)
	set(&sub.OnDead, in.OnDead)
	set(&sub.Ordered, in.Ordered)
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

// filterTrial is the result of a filter on the latest events.
type filterTrial struct {
	Problem string // why the filter is invalid
	Events  []triedEvent
	Matched int
}

type triedEvent struct {
	events.Stored

	Matches bool
	Problem string
}

// triedEvents is the number of events that a filter is tried on.
const triedEvents = 50

// tryFilter shows the result of a filter on the company's latest events, next to the filter's
// form.
func (s *server) tryFilter(ctx context.Context, v *visit) error {
	company, id, err := v.thing()
	if err != nil {
		return err
	}
	sub, err := s.opts.Subscribers.Get(ctx, company, id)
	if err != nil {
		return err
	}
	trial, err := s.trial(ctx, v, sub)
	if err != nil {
		return err
	}
	in, _, err := v.settings()
	if err != nil {
		in = edit{}
	}
	page := s.newEditPage(in.appliedTo(sub))
	page.EventList, page.Tried = v.r.PostFormValue("events"), &trial
	v.show("edit", "Edit "+sub.Name, page)
	return nil
}

func (s *server) trial(ctx context.Context, v *visit, sub subscribers.Subscriber) (trial filterTrial, err error) {
	if !v.session.May(readEvents) {
		return filterTrial{Problem: "Your session may not read events, so there is nothing to try it on."}, nil
	}
	in, _, err := v.settings()
	if err == nil && in.Events != nil {
		sub.Events = *in.Events
	}
	if sub, err = sub.WithFilter(strings.TrimSpace(strings.ReplaceAll(v.r.PostFormValue("filter"), "\r\n", "\n"))); err != nil {
		return filterTrial{Problem: err.Error()}, nil //nolint:nilerr // it is shown
	}
	page, err := s.opts.Events.List(ctx, history.Filter{Company: &sub.CompanyUUID, Size: triedEvents})
	if err != nil {
		return trial, err
	}
	for _, e := range page.Items {
		tried := triedEvent{Stored: e}
		var failed error
		if tried.Matches, failed = sub.Matches(filter.NewEvent(e.Event)); failed != nil {
			tried.Problem = failed.Error()
		}
		if tried.Matches {
			trial.Matched++
		}
		trial.Events = append(trial.Events, tried)
	}
	return trial, nil
}

// subscriberChange is a change of a subscriber that its page has a button for.
func (s *server) subscriberChange(v *visit, action, detail, done string, change func(company, id uuid.UUID) error) error {
	company, id, err := v.thing()
	if err != nil {
		return err
	}
	v.changes(&company, "subscriber", id.String())
	v.as(action, detail)
	if err := change(company, id); err != nil {
		return err
	}
	return v.done("/console/subscribers/"+id.String(), done)
}

func (s *server) pause(ctx context.Context, v *visit) error {
	return s.subscriberChange(v, "subscriber.pause", "", "paused", func(company, id uuid.UUID) error {
		return s.opts.Subscribers.Pause(ctx, company, id)
	})
}

func (s *server) resume(ctx context.Context, v *visit) error {
	if v.choice("drop", "true") != "" {
		company, id, err := v.thing()
		if err != nil {
			return err
		}
		v.changes(&company, "subscriber", id.String())
		v.as("subscriber.resume", "drop")
		job, err := s.opts.Redelivery.Drop(ctx, company, id)
		if err != nil {
			return err
		}
		return v.done("/console/jobs/"+job.UUID.String(), "started")
	}
	return s.subscriberChange(v, "subscriber.resume", "", "resumed", func(company, id uuid.UUID) error {
		return s.opts.Subscribers.Resume(ctx, company, id)
	})
}

func (s *server) enable(ctx context.Context, v *visit) error {
	return s.switched(ctx, v, true, "enabled")
}

func (s *server) disable(ctx context.Context, v *visit) error {
	return s.switched(ctx, v, false, "disabled")
}

func (s *server) switched(ctx context.Context, v *visit, on bool, done string) error {
	return s.subscriberChange(v, "subscriber.update", done, done, func(company, id uuid.UUID) error {
		_, err := s.opts.Subscribers.Update(ctx, company, id, subscribers.Settings{Enabled: &on})
		return err
	})
}

// rotateSecret shows the new secret once. The form contains the subscriber's revision, so that
// a reload of the answer does not rotate the secret again.
func (s *server) rotateSecret(ctx context.Context, v *visit) error {
	company, id, err := v.thing()
	if err != nil {
		return err
	}
	sub, err := s.opts.Subscribers.Get(ctx, company, id)
	if err != nil {
		return err
	}
	if !slices.Contains(v.r.PostForm["revision"], sub.Revision) {
		return subscribers.ErrChanged
	}
	page, err := s.readSubscriber(ctx, v) // nothing may fail between the rotation and its answer
	if err != nil {
		return err
	}
	v.changes(&company, "subscriber", id.String())
	v.as("subscriber.rotate-secret", "")
	rotated, err := s.opts.Subscribers.RotateSecret(ctx, company, id)
	if err != nil {
		return err
	}
	page.Subscriber, page.Secret = rotated, rotated.Secrets[0].Key.Reveal()
	v.render(http.StatusOK, "subscriber", page.Name, page)
	return nil
}
