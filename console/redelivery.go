package console

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"spendhook/dispatcher/challenge"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/redelivery"
	"spendhook/events"
	"spendhook/internal/invalid"
)

// testSubscriber sends a test delivery and shows the exchange.
func (s *server) testSubscriber(ctx context.Context, v *visit, company, id uuid.UUID) error {
	page, err := s.readSubscriber(ctx, v, company, id)
	if err != nil {
		return err
	}
	v.setAuditEntry("subscriber.test", "", &company, "subscriber", id.String())
	result, err := s.opts.Inspector.Test(ctx, company, id)
	if err != nil {
		return err
	}
	page.Test = &result
	v.show("subscriber", page.Name, page)
	return nil
}

// verifySubscriber challenges the receiver, and shows why it is not verified.
func (s *server) verifySubscriber(ctx context.Context, v *visit, company, id uuid.UUID) error {
	v.setAuditEntry(challenge.Action, "", &company, "subscriber", id.String())
	_, err := s.opts.Challenger.Verify(ctx, company, id)
	failed, ok := errors.AsType[*challenge.FailedError](err)
	if err == nil {
		return v.done("/console/subscribers/"+id.String(), "verified")
	} else if !ok {
		return err
	}
	v.entry.Detail = failed.Error()
	page, err := s.readSubscriber(ctx, v, company, id)
	if err != nil {
		return err
	}
	page.Refused = failed.Reason
	v.show("subscriber", page.Name, page)
	return nil
}

// recover starts a dry run of a recovery, or the recovery if the form is confirmed. The page of
// the dry run has the button that confirms.
func (s *server) recover(ctx context.Context, v *visit, company, id uuid.UUID) (err error) {
	request := redelivery.RecoverRequest{Company: company, Subscriber: id, DryRun: v.choice("confirmed", "true") == ""}
	if request.Since, request.Until, err = s.window(v); err != nil {
		return err
	}
	if v.choice("what", "retrying") != "" {
		request.Statuses = []delivery.Status{delivery.StatusDead, delivery.StatusRetrying}
	}
	detail := ""
	if request.DryRun {
		detail = "dry run"
	}
	v.setAuditEntry("subscriber.recover", detail, &company, "subscriber", id.String())
	job, err := s.opts.Redelivery.Recover(ctx, request)
	if err != nil {
		return err
	}
	return v.done("/console/jobs/"+job.UUID.String(), "started")
}

// window returns the period in a form.
func (s *server) window(v *visit) (since, until time.Time, err error) {
	if from := v.since(); from != nil {
		return from.Truncate(time.Millisecond), time.Time{}, nil
	}
	var problems invalid.Error
	if since, err = time.Parse(time.RFC3339, v.Query("from")); err != nil || since.After(s.opts.Now()) {
		problems.Add("since", "INVALID", "must be a time in the past")
	}
	if text := v.Query("to"); text != "" {
		if until, err = time.Parse(time.RFC3339, text); err != nil || until.Before(since) {
			problems.Add("to", "INVALID", "must be a time after the start")
		}
	}
	return since, until, problems.OrNil()
}

// replay sends an event again, to all of its subscribers or to one.
func (s *server) replay(ctx context.Context, v *visit, ref events.Ref) error {
	var only []uuid.UUID
	if text := v.Query("subscriber"); text != "" {
		one, err := uuid.Parse(text)
		if err != nil {
			return errNoPage
		}
		only = append(only, one)
	}
	v.setAuditEntry("event.replay", "", &ref.Company, "event", ref.ID)
	list, err := s.opts.Redelivery.Replay(ctx, ref, only)
	if err != nil {
		return err
	}
	return v.done(eventPath(ref), "replayed", "n", strconv.Itoa(len(list)))
}

func eventPath(ref events.Ref) string {
	return "/console/events/" + ref.Company.String() + "/" + ref.ID
}

// retry attempts one delivery again.
func (s *server) retry(ctx context.Context, v *visit, company uuid.UUID) error {
	id := v.r.PathValue("id")
	v.setAuditEntry("delivery.retry", "", &company, "delivery", id)
	if _, err := s.opts.Redelivery.Retry(ctx, company, id); err != nil {
		return err
	}
	return v.done("/console/deliveries/"+id, "retried", "n", "1")
}

// retrySelected retries the selected deliveries of a list, and reports how many could not be
// retried. A selected id without a company belongs to the company of the session.
func (s *server) retrySelected(ctx context.Context, v *visit) error {
	ids := v.r.PostForm["id"]
	if len(ids) == 0 || len(ids) > 2*listSize {
		return errForm
	}
	retried, refused := 0, 0
	for _, text := range ids {
		ref, err := v.selectedDelivery(text)
		if err != nil {
			return err
		}
		v.setAuditEntry("delivery.retry", "", &ref.Company, "delivery", ref.PublicID())
		_, err = s.opts.Redelivery.Retry(ctx, ref.Company, ref.PublicID())
		v.writeAuditEntry(err)
		v.entry = nil
		switch {
		case err == nil:
			retried++
		case problemOf(err).Status >= http.StatusInternalServerError:
			return err
		default:
			refused++
		}
	}
	back := "/console/deliveries"
	if v.choice("back", "dead") != "" {
		back = "/console/dead"
	}
	return v.done(back, "retried", "n", strconv.Itoa(retried), "refused", strconv.Itoa(refused))
}

// selectedDelivery parses the value of a checkbox: "<company>/<id>".
func (v *visit) selectedDelivery(text string) (ref delivery.Ref, err error) {
	if len(text) < 37 || text[36] != '/' {
		return ref, errForm
	}
	company, err := uuid.Parse(text[:36])
	if err != nil {
		return ref, errForm
	}
	if !v.includes(company) {
		return ref, errNoPage
	}
	return delivery.ParseID(company, text[37:])
}
