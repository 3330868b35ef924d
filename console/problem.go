package console

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"

	"spendhook/console/session"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/tail"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/internal/cursor"
	"spendhook/internal/invalid"
	"spendhook/internal/redisx"
	"spendhook/storage"
	"spendhook/subscribers"
	"spendhook/subscribers/vault"
)

// problem is an error as a page shows it.
type problem struct {
	Status        int
	Title, Detail string
	Fields        []invalid.Field
	RequestID     string
	Entered       bool // the visitor has a session
}

var known = []struct {
	err    error
	status int
	title  string
	detail string
}{
	{errNoSession, http.StatusUnauthorized, "You are not let in", "Your session has ended, or there was none. Ask for a new link where you got the last one; on the machine of the daemon, spendhook console prints one."},
	{session.ErrNotFound, http.StatusNotFound, "This link does not work any more", "A link opens one session, within a minute. Ask for a new one."},
	{session.ErrTooMany, http.StatusTooManyRequests, "Too many sessions", "Your company has as many sessions as it may. Leave one, or have one ended."},
	{errCertificate, http.StatusForbidden, "A client certificate is needed", "The console is only shown to browsers that present the right client certificate. Install yours, and open a new link."},
	{errForbidden, http.StatusForbidden, "Not with this session", "Your session does not include this. Who gave you the link decides what it includes."},
	{errToken, http.StatusForbidden, "Nothing was changed", "The form is from another session, or not from this console. Go back, load the page again and press the button once more."},
	{errForm, http.StatusBadRequest, "Nothing was changed", "The form could not be read, or says too much."},
	{errNoPage, http.StatusNotFound, "There is nothing here", "Nothing of yours is at this address."},
	{errTooOften, http.StatusTooManyRequests, "Too fast", "This browser asks for too many pages. Wait a moment and try again."},
	{errBusy, http.StatusServiceUnavailable, "Too busy", "Too many pages are being made. Try again in a moment."},
	{events.ErrNotFound, http.StatusNotFound, "There is no such event", "It was never accepted, or is past its retention."},
	{events.ErrCompacted, http.StatusGone, "The payload is not kept any more", "The event settled long ago. Its id stays known; its source can tell what was in it."},
	{subscribers.ErrNotFound, http.StatusNotFound, "There is no such subscriber", "It was deleted, or never was."},
	{subscribers.ErrConflict, http.StatusConflict, "Nothing was changed", "Another subscriber of the company has this callback URL."},
	{vault.ErrLocked, http.StatusConflict, "The secrets do not open", "The subscriber's secrets are sealed under a key that the daemon does not have. Its log says more."},
	{subscribers.ErrChanged, http.StatusPreconditionFailed, "Nothing was changed", "Somebody has changed the subscriber meanwhile. Load the page again and see what it says now."},
	{delivery.ErrNotFound, http.StatusNotFound, "There is no such thing", "It is past its retention, or never was."},
	{delivery.ErrInFlight, http.StatusConflict, "Nothing was changed", "An attempt of this delivery is under way. It may well succeed."},
	{delivery.ErrSubscriberGone, http.StatusConflict, "Nothing was changed", "The subscriber was deleted: nothing can be sent to it."},
	{delivery.ErrSubscriberDisabled, http.StatusConflict, "Nothing was changed", "The subscriber is disabled. Enable it first."},
	{redelivery.ErrFinished, http.StatusConflict, "Nothing was changed", "The job has completed meanwhile."},
	{redelivery.ErrNotCancellable, http.StatusConflict, "Nothing was changed", "The job is part of a change of a subscriber, or erases a company; it goes on to its end."},
	{redelivery.ErrTooManyJobs, http.StatusTooManyRequests, "Nothing was started", "Too many jobs of the company are under way. Wait until some have ended, or cancel some."},
	{tail.ErrTooMany, http.StatusTooManyRequests, "Too many live tails", "As many live tails are open as may be. Close another one."},
	{inspect.ErrTesting, http.StatusConflict, "A test is under way", "Wait for its end."},
	{quarantine.ErrNotFound, http.StatusNotFound, "It is not in the quarantine", "Somebody has retried or dropped it meanwhile."},
	{storage.ErrNotFound, http.StatusNotFound, "There is no such job", "It is past its retention, or never was."},
	{cursor.ErrBad, http.StatusBadRequest, "This page of the list is gone", "Start again from the first page."},
}

// problemOf gives every error the form in which it is shown. An unknown one is a
// plain 500.
func problemOf(err error) problem {
	if e, ok := errors.AsType[*invalid.Error](err); ok {
		return problem{Status: http.StatusBadRequest, Title: "Nothing was changed", Detail: "Some of what you entered is not valid.", Fields: e.Fields}
	}
	for _, k := range known {
		if errors.Is(err, k.err) {
			return problem{Status: k.status, Title: k.title, Detail: k.detail}
		}
	}
	if e, ok := errors.AsType[redelivery.UnknownSubscribersError](err); ok {
		return problem{Status: http.StatusUnprocessableEntity, Title: "Nothing was changed", Detail: "The company has no such subscribers: " + e.Error()}
	}
	if unavailable(err) {
		return problem{Status: http.StatusServiceUnavailable, Title: "Not available just now", Detail: "What keeps the data does not answer. Deliveries go on when it is back; try again in a moment."}
	}
	return problem{Status: http.StatusInternalServerError, Title: "Something went wrong", Detail: "The log of the daemon has the cause under the request id below."}
}

// unavailable reports whether Redis or the database is unreachable or too slow.
func unavailable(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return network || redisx.Unavailable(err) || errors.Is(err, io.EOF) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, context.Canceled) || errors.Is(err, events.ErrUnavailable) || errors.Is(err, storage.ErrUnavailable)
}

// fail shows an error, and logs one that the visitor did not cause.
func (v *visit) fail(err error) {
	p := problemOf(err)
	p.RequestID, p.Entered = v.w.Header().Get("X-Request-Id"), v.secret != ""
	if p.Status >= http.StatusInternalServerError && !errors.Is(err, errBusy) && v.r.Context().Err() == nil {
		v.server.opts.Logger.LogAttrs(v.r.Context(), slog.LevelError, "console page failed",
			slog.String("request_id", p.RequestID), slog.Int("http.response.status_code", p.Status), slog.Any("exception.message", err))
	}
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests {
		v.w.Header().Set("Retry-After", "1")
	}
	v.render(p.Status, "problem", p.Title, p)
}
