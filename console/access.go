package console

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/netip"
	"time"

	"spendhook/console/session"
	"spendhook/internal/clientcert"
	"spendhook/internal/peer"
	"spendhook/internal/ratelimit"
)

// policy allows a page to load embedded assets, and to send requests only to this daemon.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// protect sets security headers, and refuses changes that another site sends through a browser.
// In old browsers only the CSRF token of the session prevents such changes.
func protect(next http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "The request came from another site.", http.StatusForbidden)
	}))
	return origins.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=()")
		h.Set("X-Frame-Options", "DENY")
		next.ServeHTTP(w, r)
	}))
}

// The names of the session's cookie. Browsers accept the first name only over TLS, for this
// host and all of its paths. Plain HTTP uses the second name, since not all browsers accept the
// first one there. The daemon answers plain HTTP only to this machine.
const (
	secureCookie = "__Host-spendhook"
	clearCookie  = "spendhook-console"
)

// secure reports whether a request came over TLS, to the daemon or to a trusted proxy.
func (s *server) secure(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && s.opts.Peers.Trusts(from.Addr().Unmap())
}

func (s *server) cookie(r *http.Request, value string) *http.Cookie {
	c := &http.Cookie{Name: clearCookie, Value: value, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if s.secure(r) {
		c.Name, c.Secure = secureCookie, true
	}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// secretOf returns the secret in the request's cookie, and "" unless there is exactly one cookie.
func (s *server) secretOf(r *http.Request) string {
	if cookies := r.CookiesNamed(s.cookie(r, "").Name); len(cookies) == 1 {
		return cookies[0].Value
	}
	return ""
}

var (
	errNoSession   = errors.New("no session")
	errCertificate = errors.New("the session needs a client certificate")
)

// findSession returns the session of a request. The error is errNoSession, errCertificate, or that of
// an unavailable Redis.
func (s *server) findSession(ctx context.Context, r *http.Request) (session.Session, string, error) {
	if s.opts.CertificateRequired && clientcert.ThumbprintFrom(ctx) == "" {
		return session.Session{}, "", errCertificate
	}
	secret := s.secretOf(r)
	if secret == "" {
		return session.Session{}, "", errNoSession
	}
	found, err := s.opts.Sessions.Find(ctx, secret, r.Header.Get("X-Refresh") == "")
	if errors.Is(err, session.ErrNotFound) {
		err = errNoSession
	}
	if err != nil {
		return session.Session{}, "", err
	}
	if found.Certificate != "" && found.Certificate != clientcert.ThumbprintFrom(ctx) {
		return session.Session{}, "", errCertificate
	}
	if !s.opts.Accepts(found.Asker) {
		_, _ = s.opts.Sessions.End(ctx, found.Company, found.ID, nil) // the request is refused even if this fails
		return session.Session{}, "", errNoSession
	}
	return found, secret, nil
}

// tokenOf returns the CSRF token for the forms of a session's pages. Another site can make the
// browser send the session's cookie, but does not know this token.
func tokenOf(secret string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("form"))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// askToOpen shows which session a link opens. Only the button on the page uses up the link, because
// programs that fetch links and pages of other sites must not use it up.
func (s *server) askToOpen(ctx context.Context, v *visit) error {
	link := v.r.URL.Query().Get("link")
	grant, err := s.peek(ctx, link)
	if err != nil {
		return err
	}
	_, _, err = s.findSession(ctx, v.r)
	v.show("open", "Open the console", openPage{Grant: grant, Link: link, Replaces: err == nil})
	return nil
}

// peek returns the grant of a link that the browser may open.
func (s *server) peek(ctx context.Context, link string) (session.Grant, error) {
	grant, err := s.opts.Sessions.Peek(ctx, link)
	switch {
	case err != nil:
		return grant, err
	case grant.Bound && grant.Asker.Certificate != clientcert.ThumbprintFrom(ctx):
		return grant, errCertificate
	case !s.opts.Accepts(grant.Asker):
		return grant, session.ErrNotFound
	}
	return grant, nil
}

type openPage struct {
	Grant    session.Grant
	Link     string
	Replaces bool // the browser has a session, which the new session ends
}

func (s *server) open(ctx context.Context, v *visit) error {
	v.r.Body = http.MaxBytesReader(v.w, v.r.Body, maxForm)
	link := v.r.PostFormValue("link")
	if _, err := s.peek(ctx, link); err != nil { // which does not use the link up
		return err
	}
	if err := s.openLink(ctx, v, link); err != nil {
		return err
	}
	http.Redirect(v.w, v.r, "/console/", http.StatusSeeOther)
	return nil
}

// openLink uses a link up, and gives its session to the browser.
func (s *server) openLink(ctx context.Context, v *visit, link string) error {
	visitor := session.Visitor{Address: peer.AddressText(ctx), Certificate: clientcert.ThumbprintFrom(ctx)}
	opened, secret, err := s.opts.Sessions.Open(ctx, link, visitor)
	if err != nil {
		return err
	}
	if old, _, err := s.findSession(ctx, v.r); err == nil {
		_, _ = s.opts.Sessions.End(ctx, old.Company, old.ID, nil) // the session expires anyway
	}
	v.Session = opened
	v.setAuditEntry("console-session.open", opened.Asker.Email, opened.Company, "console-session", opened.ID.String())
	v.writeAuditEntry(nil)
	http.SetCookie(v.w, s.cookie(v.r, secret))
	return nil
}

// public adds a page for visitors without a session.
func (s *server) public(pattern string, limit time.Duration, h handle) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		v := &visit{w: w, r: r, server: s}
		err := s.limitAnonymous(ctx)
		if err == nil {
			err = h(ctx, v)
		}
		if err != nil {
			v.fail(err)
		}
	})
}

// limitAnonymous limits the requests without a session from one address.
func (s *server) limitAnonymous(ctx context.Context) error {
	if s.opts.CertificateRequired && clientcert.ThumbprintFrom(ctx) == "" {
		return errCertificate
	}
	return s.take(ctx, ratelimit.Limit{Name: "console-open", PerSecond: 5, Burst: 50}, peer.Network(peer.Address(ctx)).String())
}

// perSession limits the requests of a session.
var perSession = ratelimit.Limit{Name: "console", PerSecond: 20, Burst: 200}

var errTooOften = errors.New("too many requests")

// take counts a request against a limit. It returns errTooOften beyond the limit.
func (s *server) take(ctx context.Context, limit ratelimit.Limit, key string) error {
	if !s.opts.Limiter.Take(ctx, limit, key, 1).OK {
		return errTooOften
	}
	return nil
}

// signOut ends the session.
func (s *server) signOut(ctx context.Context, v *visit) error {
	v.setAuditEntry("console-session.end", "", v.Company, "console-session", v.ID.String())
	if _, err := s.opts.Sessions.End(ctx, v.Company, v.ID, nil); err != nil && !errors.Is(err, session.ErrNotFound) {
		return err
	}
	http.SetCookie(v.w, s.cookie(v.r, ""))
	v.Session, v.secret = session.Session{}, ""
	v.show("signed-out", "Signed out", nil)
	return nil
}
