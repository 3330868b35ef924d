package console

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"

	"spendhook/console/login"
	"spendhook/console/session"
	"spendhook/dispatcher/challenge"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/tail"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/publish"
	"spendhook/internal/cursor"
	"spendhook/internal/invalid"
	"spendhook/internal/redisx"
	"spendhook/storage"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
)

// problem describes an error for a page.
type problem struct {
	Status        int
	Title, Detail string
	Fields        []invalid.Field
	RequestID     string
	HasSession    bool
	SignIn        string // the text of the button; "" shows none
}

// known has the problems of known errors.
var known = []struct {
	err    error
	status int
	title  string
	detail string
}{
	{errNoSession, http.StatusUnauthorized, "No session", "Your session has ended, or this browser had none. Ask for a new link. On the machine of the daemon, the command spendhook console prints one."},
	{login.ErrUnavailable, http.StatusServiceUnavailable, "Signing in is not possible now", "The login provider does not answer as it should. Try again in a moment. The log of the daemon contains the cause."},
	{login.ErrStale, http.StatusBadRequest, "Sign in again", "This browser did not begin this login, began another one since, or took longer than ten minutes."},
	{login.ErrDenied, http.StatusForbidden, "Not signed in", "The login provider did not sign you in. Try again, or ask the administrator of your account."},
	{login.ErrRefused, http.StatusForbidden, "Not signed in", "The answer of the login provider is not valid. Try again. The log of the daemon contains the cause, with the request id below."},
	{login.ErrNoAccess, http.StatusForbidden, "No access", "You are signed in at the login provider, but your account has no access to this console: none of its groups has a role here. Ask the operator for one, or sign out there to use another account."},
	{login.ErrTooMany, http.StatusForbidden, "No access", "Your account has roles in more than 20 companies, too many to choose from. Ask the operator for a role in fewer, or in all."},
	{login.ErrCertificate, http.StatusForbidden, "A client certificate is needed", "Your role includes operations that need a client certificate. Install the certificate in this browser and sign in again."},
	{session.ErrNotFound, http.StatusNotFound, "The link is not valid", "The link was used, or has expired. A link opens one session, within one minute. Ask for a new link."},
	{session.ErrTooMany, http.StatusTooManyRequests, "Too many sessions", "Your company has the maximum number of sessions. End one of them first."},
	{errCertificate, http.StatusForbidden, "A client certificate is needed", "The console needs a client certificate. All requests of a session must have the same one. Install the certificate in this browser and open a new link."},
	{errForbidden, http.StatusForbidden, "Not allowed", "Your session is read-only, or does not have the scope for this page or change. Ask for another link."},
	{errToken, http.StatusForbidden, "Nothing was changed", "The form is from another session. Go back, reload the page and press the button again."},
	{errForm, http.StatusBadRequest, "Nothing was changed", "The form could not be read, or is too large."},
	{errNotConfirmed, http.StatusBadRequest, "Nothing was erased", "Enter the first eight characters of the company's UUID, to confirm."},
	{certificate.ErrNotFound, http.StatusNotFound, "Nothing was changed", "The subscriber has no client certificate of its own."},
	{certificate.ErrNoSubscriber, http.StatusNotFound, "There is no such subscriber", "The subscriber was deleted, or never existed."},
	{certificate.ErrTooMany, http.StatusConflict, "Nothing was changed", "The company has the maximum number of subscribers with a client certificate of their own."},
	{errNoPage, http.StatusNotFound, "No such page", "This page does not exist, or your session does not include it."},
	{errTooOften, http.StatusTooManyRequests, "Too many requests", "This browser requests too many pages. Wait a moment and try again."},
	{errBusy, http.StatusServiceUnavailable, "Too busy", "The daemon is rendering too many pages. Try again in a moment."},
	{events.ErrNotFound, http.StatusNotFound, "There is no such event", "The event was never accepted, or its retention has ended."},
	{events.ErrCompacted, http.StatusGone, "The payload was removed", "The event settled long ago, and only its id is kept. Its source may still have the payload."},
	{store.ErrOpen, http.StatusConflict, "Nothing was erased", "A delivery of the event waits, or the event is in quarantine."},
	{events.ErrSearching, http.StatusTooManyRequests, "A search is in progress", "Another search of your company, or several of other companies, must end first. Try again in a moment."},
	{publish.ErrConflict, http.StatusConflict, "Nothing was sent", "The id is known with other content."},
	{publish.ErrBacklogFull, http.StatusTooManyRequests, "Nothing was sent", "The company has the maximum number of pending events. Try again when some are delivered."},
	{certificate.ErrFull, http.StatusServiceUnavailable, "Nothing was stored", "Redis has too little memory left for more of the company. Try again when some events are delivered."},
	{publish.ErrStorageFull, http.StatusServiceUnavailable, "Nothing was stored", "Redis has too little memory left for more of the company. Try again when some events are delivered."},
	{eventtype.ErrNotFound, http.StatusNotFound, "Nothing was removed", "The type has no stored documentation."},
	{eventtype.ErrFixed, http.StatusConflict, "Nothing was changed", "The daemon defines this type."},
	{eventtype.ErrFull, http.StatusConflict, "Nothing was changed", "The maximum number of types, or of their bytes, is stored."},
	{subscribers.ErrQuota, http.StatusConflict, "Nothing was created", "The company has the maximum number of subscribers."},
	{subscribers.ErrNotFound, http.StatusNotFound, "There is no such subscriber", "The subscriber was deleted, or never existed."},
	{subscribers.ErrConflict, http.StatusConflict, "Nothing was changed", "Another subscriber of the company has this callback URL."},
	{subscribers.ErrUnverified, http.StatusConflict, "Not verified", "The callback URL of the subscriber must be verified first."},
	{challenge.ErrUnderWay, http.StatusConflict, "A challenge is in progress", "Wait until it has ended."},
	{subscribers.ErrTooManySecrets, http.StatusConflict, "Nothing was changed", "Five secrets sign the deliveries of this subscriber. Rotate again once the oldest one has expired."},
	{subscribers.ErrNoSigningKey, http.StatusNotFound, "There is no such key", "It was revoked, the company was erased, or it never had a subscriber."},
	{subscribers.ErrRotatedRecently, http.StatusConflict, "Nothing was changed", "Receivers may not know the next keys yet: rotate ten minutes after the last rotation, and at most four times within a day. A key that leaked can be revoked at any time."},
	{subscribers.ErrLocked, http.StatusConflict, "The secrets cannot be decrypted", "A secret of the subscriber or a key of the company is damaged, or its encryption key is not configured. The log of the daemon names the key."},
	{subscribers.ErrChanged, http.StatusPreconditionFailed, "Nothing was changed", "The subscriber was changed after you opened the form. Reload the page to see the present values."},
	{delivery.ErrNotFound, http.StatusNotFound, "There is no such delivery or job", "It never existed, or its retention has ended."},
	{delivery.ErrInFlight, http.StatusConflict, "Nothing was changed", "An attempt of this delivery is in progress. Wait for its result."},
	{delivery.ErrSubscriberGone, http.StatusConflict, "Nothing was changed", "The subscriber was deleted."},
	{delivery.ErrSubscriberDisabled, http.StatusConflict, "Nothing was changed", "The subscriber is disabled. Enable it first."},
	{redelivery.ErrFinished, http.StatusConflict, "Nothing was changed", "The job has completed."},
	{redelivery.ErrNotCancellable, http.StatusConflict, "Nothing was changed", "A job that deletes a subscriber or erases a company cannot be cancelled."},
	{redelivery.ErrTooManyJobs, http.StatusTooManyRequests, "Nothing was started", "The company has too many unfinished jobs. Wait until some have completed, or cancel some."},
	{tail.ErrTooMany, http.StatusTooManyRequests, "Too many live tails", "The maximum number of live tails is open. Close another one first."},
	{inspect.ErrTesting, http.StatusConflict, "A test is in progress", "Wait until it has ended."},
	{quarantine.ErrNotFound, http.StatusNotFound, "Not in the quarantine", "The entry was retried or dropped meanwhile."},
	{storage.ErrNotFound, http.StatusNotFound, "There is no such job", "The job never existed, or its retention has ended."},
	{cursor.ErrBad, http.StatusBadRequest, "This page of the list cannot be shown", "The address belongs to another filter, or is damaged. Start again from the first page."},
}

// problemOf returns the problem to show for an error. For an unknown error its status is 500.
func problemOf(err error) problem {
	if e, ok := errors.AsType[*invalid.Error](err); ok {
		return problem{Status: http.StatusBadRequest, Title: "Nothing was changed", Detail: "Some of what you entered is not valid.", Fields: e.Fields}
	}
	if e, ok := errors.AsType[*challenge.FailedError](err); ok {
		return problem{Status: http.StatusUnprocessableEntity, Title: "Nothing was changed", Detail: "The receiver at the new callback URL is not verified: " + e.Reason + "."}
	}
	if e, ok := errors.AsType[*challenge.LimitError](err); ok {
		return problem{Status: http.StatusTooManyRequests, Title: "Challenged too often", Detail: "The host of the callback URL was challenged too often within an hour, or by this company. Try again in " + shortDuration(e.RetryAfter) + "."}
	}
	if e, ok := errors.AsType[*requests.TransformError](err); ok {
		return problem{Status: http.StatusConflict, Title: "The transform failed", Detail: "On this event: " + e.Why.Error() + ". Change the transform of the subscriber."}
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
		return problem{Status: http.StatusServiceUnavailable, Title: "Not available", Detail: "Redis or the database does not answer. Try again in a moment."}
	}
	return problem{Status: http.StatusInternalServerError, Title: "Something went wrong", Detail: "The log of the daemon contains the cause, with the request id below."}
}

// refusal returns the problem of an error after which a form is shown again. Other errors have a page of their own.
func refusal(err error) (p problem, refused bool) {
	if err == nil {
		return p, false
	}
	p = problemOf(err)
	return p, p.Status < http.StatusInternalServerError || errors.Is(err, publish.ErrStorageFull)
}

// signInAgain are the errors after which a visitor may sign in again.
var signInAgain = []error{login.ErrUnavailable, login.ErrStale, login.ErrDenied, login.ErrRefused, login.ErrNoAccess, login.ErrCertificate}

// CanSignIn reports whether there is a login provider.
func (v *visit) CanSignIn() bool { return v.server.opts.Login != nil }

// unavailable reports whether Redis or the database is unreachable or too slow.
func unavailable(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return network || redisx.Unavailable(err) || errors.Is(err, io.EOF) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, context.Canceled) || errors.Is(err, events.ErrUnavailable) || errors.Is(err, storage.ErrUnavailable)
}

// fail shows an error, and logs one that the visitor did not cause.
func (v *visit) fail(err error) {
	p := problemOf(err)
	p.RequestID, p.HasSession = v.w.Header().Get("X-Request-Id"), v.secret != ""
	if errors.Is(err, errNoSession) && v.CanSignIn() {
		p.Title, p.Detail = "Sign in", "Your session has ended, or this browser had none. Sign in, or open the console by a link."
		p.SignIn = "Sign in"
	}
	if slices.ContainsFunc(signInAgain, func(again error) bool { return errors.Is(err, again) }) {
		p.SignIn = "Try again"
	}
	if p.Status >= http.StatusInternalServerError && !errors.Is(err, errBusy) && !errors.Is(err, login.ErrUnavailable) && v.r.Context().Err() == nil {
		v.server.opts.Logger.LogAttrs(v.r.Context(), slog.LevelError, "console page failed",
			slog.String("request_id", p.RequestID), slog.Int("http.response.status_code", p.Status), slog.Any("exception.message", err))
	}
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests {
		v.w.Header().Set("Retry-After", "1")
	}
	v.render(p.Status, "problem", p.Title, p)
}
