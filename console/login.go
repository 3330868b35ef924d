package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"spendhook/console/login"
	"spendhook/console/session"
	"spendhook/internal/clientcert"
)

// loginTimeout is the time limit of a page that waits for the login provider.
const loginTimeout = 15 * time.Second

// beginLogin sends the browser to the login provider, unless it has a session.
func (s *server) beginLogin(ctx context.Context, v *visit) error {
	if s.opts.Login == nil {
		return errNoPage
	}
	if _, _, err := s.findSession(ctx, v.r); err == nil {
		http.Redirect(v.w, v.r, "/console/", http.StatusSeeOther)
		return nil
	}
	address, cookie, err := s.opts.Login.Begin(ctx)
	if err != nil {
		return err
	}
	http.SetCookie(v.w, s.loginCookie(v.r, cookie))
	http.Redirect(v.w, v.r, address, http.StatusSeeOther)
	return nil
}

// loginCookie recognises the browser that began a login. It is sent with the link by which the provider sends the browser
// back, which the cookie of the session is not.
func (s *server) loginCookie(r *http.Request, value string) *http.Cookie {
	c := s.cookie(r, value) //nolint:gosec // cookie sets HttpOnly, and Secure over TLS
	c.Name += "-login"
	c.SameSite = http.SameSiteLaxMode
	if value != "" {
		c.MaxAge = int(login.Life.Seconds())
	}
	return c
}

// finishLogin opens the session of the user whom the provider sends back, or lets the user choose one.
func (s *server) finishLogin(ctx context.Context, v *visit) error {
	if s.opts.Login == nil {
		return errNoPage
	}
	callback := login.Callback{Query: v.r.URL.Query(), Certificate: clientcert.ThumbprintFrom(ctx)}
	if cookies := v.r.CookiesNamed(s.loginCookie(v.r, "").Name); len(cookies) == 1 {
		callback.Cookie = cookies[0].Value
		http.SetCookie(v.w, s.loginCookie(v.r, "")) // also after an error: it is of no more use
	}
	grants, err := s.opts.Login.Finish(ctx, callback)
	if err != nil {
		s.logRefusal(v, err)
		return err
	}
	choices := make([]choice, len(grants))
	for i, g := range grants {
		link, err := s.opts.Sessions.CreateLink(ctx, g)
		if err != nil {
			return err
		}
		choices[i] = choice{g, link.Secret}
	}
	if len(choices) > 1 {
		v.show("choose", "Choose a company", choices)
		return nil
	}
	if err := s.openLink(ctx, v, choices[0].Link); err != nil {
		return err
	}
	// Browsers do not send the session's cookie if the provider's page began the navigation, so this page begins another.
	v.w.Header().Set("Refresh", "0; url=/console/")
	v.Session = session.Session{} // whose cookie the browser does not have yet
	v.show("signed-in", "Signed in", nil)
	return nil
}

// choice is one of the sessions that a user may open.
type choice struct {
	Grant session.Grant
	Link  string
}

// logRefusal logs why a user who came back from the provider gets no session. Requests that anybody can make are not
// logged, and a provider that is unavailable only once.
func (s *server) logRefusal(v *visit, err error) {
	for _, known := range []error{login.ErrRefused, login.ErrDenied, login.ErrNoAccess, login.ErrTooMany, login.ErrCertificate} {
		if errors.Is(err, known) {
			s.opts.Logger.LogAttrs(v.r.Context(), slog.LevelWarn, "console login refused",
				slog.String("request_id", v.w.Header().Get("X-Request-Id")), slog.Any("exception.message", err))
		}
	}
}
