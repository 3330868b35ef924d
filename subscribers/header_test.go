package subscribers_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"spendhook/internal/secret"
	"spendhook/subscribers"
)

type secrets = map[string]secret.Text

// settings are what sets the headers.
func settings(headers secrets) map[string]*secret.Text {
	changes := map[string]*secret.Text{}
	for name, value := range headers {
		changes[name] = &value
	}
	return changes
}

func TestHeadersAreKeptUnderCanonicalNames(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	in := b.input("https://example.com/")
	in.Headers = settings(secrets{"x-api-KEY": "v 1", "AUTHORIZATION": "Basic dTpw", "X_Under": "\"quoted\"\t~"})
	s, err := b.store.Create(t.Context(), b.company, in)
	noErr(t, err)
	wantHeaders(t, s, "Authorization=Basic dTpw", "X-Api-Key=v 1", "X_under=\"quoted\"\t~")
	read, err := b.store.Get(t.Context(), b.company, s.UUID)
	noErr(t, err)
	wantHeaders(t, read, "Authorization=Basic dTpw", "X-Api-Key=v 1", "X_under=\"quoted\"\t~")
	if raw := b.raw(t, s); strings.Contains(raw, "dTpw") || strings.Contains(raw, "quoted") {
		t.Errorf("stored in clear: %s", raw)
	}
}

func wantHeaders(t *testing.T, s subscribers.Subscriber, want ...string) {
	t.Helper()
	var got []string
	for _, h := range s.Headers {
		got = append(got, h.Name+"="+h.Value.Reveal())
	}
	if !slices.Equal(got, want) {
		t.Errorf("headers %q, want %q", got, want)
	}
}

func TestAnUpdateChangesTheHeadersItNames(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	in := b.input("https://example.com/")
	in.Headers = settings(secrets{"X-A": "1", "X-B": "2", "X-C": "3"})
	s, err := b.store.Create(t.Context(), b.company, in)
	noErr(t, err)
	s, err = b.store.Update(t.Context(), b.company, s.UUID, subscribers.Settings{Headers: map[string]*secret.Text{
		"x-a": new(secret.Text("one")), "X-B": nil, "X-D": new(secret.Text("4")), "X-None": nil,
	}})
	noErr(t, err)
	wantHeaders(t, s, "X-A=one", "X-C=3", "X-D=4")
	s, err = b.store.Update(t.Context(), b.company, s.UUID, subscribers.Settings{Name: new("Other"), Headers: map[string]*secret.Text{}})
	noErr(t, err)
	wantHeaders(t, s, "X-A=one", "X-C=3", "X-D=4")
}

// Who may change a subscriber cannot read its headers, and gets them no other way.
func TestHeadersStayAtTheOriginTheyWereGivenFor(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	in := b.input("https://example.com/a")
	in.Headers = settings(secrets{"X-A": "1", "X-B": "2"})
	s, err := b.store.Create(t.Context(), b.company, in)
	noErr(t, err)
	move := func(to string, headers map[string]*secret.Text) error {
		s, err = b.store.Update(t.Context(), b.company, s.UUID, subscribers.Settings{CallbackURL: &to, Headers: headers})
		return err
	}
	noErr(t, move("https://EXAMPLE.com:443/b?c", nil))
	wantHeaders(t, s, "X-A=1", "X-B=2")
	kept := s
	for _, to := range []string{"https://evil.example/b", "https://example.com:8443/b", "https://example.com.evil.example/"} {
		for _, headers := range []map[string]*secret.Text{nil, {"X-C": new(secret.Text("3"))}, {"x-a": nil}} {
			if got := codes(t, move(to, headers)); !strings.Contains(got, "/headers/X-B REQUIRED") {
				t.Errorf("%s: %s", to, got)
			}
			s = kept
		}
	}
	noErr(t, move("https://new.example/", map[string]*secret.Text{"x-a": new(secret.Text("1")), "X-B": nil}))
	wantHeaders(t, s, "X-A=1")
	noErr(t, move("https://new.example/", map[string]*secret.Text{"X-A": nil}))
	noErr(t, move("https://newer.example/", nil))
}

func TestBadHeadersAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.create(t, "https://example.com/s")
	many := secrets{}
	for i := range 21 {
		many[fmt.Sprintf("X-%d", i)] = "v"
	}
	for want, headers := range map[string]secrets{
		"headers INVALID":                     {"": "v"},
		"headers INVALID,a":                   {"X A": "v"},
		"headers INVALID,b":                   {"X:A": "v"},
		"headers INVALID,c":                   {"X-Ä": "v"},
		"headers INVALID,d":                   {"X\r\nY": "v"},
		"headers INVALID,e":                   {strings.Repeat("x", 101): "v"},
		"headers TOO_MANY":                    many,
		"headers TOO_LONG":                    {"X-A": text(4000), "X-B": text(4000), "X-C": text(200)},
		"/headers/x-a DUPLICATE":              {"x-a": "1", "X-A": "2"},
		"/headers/X-A INVALID":                {"X-A": ""},
		"/headers/X-A INVALID,a":              {"X-A": " v"},
		"/headers/X-A INVALID,b":              {"X-A": "v\r\nX-B: w"},
		"/headers/X-A INVALID,c":              {"X-A": "v\x00"},
		"/headers/X-A INVALID,d":              {"X-A": "v\x7f"},
		"/headers/X-A INVALID,e":              {"X-A": "ü"},
		"/headers/X-A INVALID,f":              {"X-A": subscribers.HiddenValue},
		"/headers/X-A TOO_LONG":               {"X-A": text(4097)},
		"/headers/HOST RESERVED":              {"HOST": "v"},
		"/headers/connection RESERVED":        {"connection": "close"},
		"/headers/keep-alive RESERVED":        {"keep-alive": "v"},
		"/headers/TE RESERVED":                {"TE": "v"},
		"/headers/trailer RESERVED":           {"trailer": "v"},
		"/headers/upgrade RESERVED":           {"upgrade": "h2c"},
		"/headers/proxy-anything RESERVED":    {"proxy-anything": "v"},
		"/headers/transfer-encoding RESERVED": {"transfer-encoding": "chunked"},
		"/headers/content-length RESERVED":    {"content-length": "0"},
		"/headers/content-type RESERVED":      {"content-type": "v"},
		"/headers/content-encoding RESERVED":  {"content-encoding": "gzip"},
		"/headers/accept-encoding RESERVED":   {"accept-encoding": "gzip"},
		"/headers/user-agent RESERVED":        {"user-agent": "v"},
		"/headers/webhook-id RESERVED":        {"webhook-id": "v"},
		"/headers/WEBHOOK-SIGNATURE RESERVED": {"WEBHOOK-SIGNATURE": "v"},
		"/headers/webhook-else RESERVED":      {"webhook-else": "v"},
		"/headers/cookie RESERVED":            {"cookie": "v"},
		"/headers/expect RESERVED":            {"expect": "100-continue"},
		"/headers/idempotency-key RESERVED":   {"idempotency-key": "v"},
		"/headers/x-forwarded-for RESERVED":   {"x-forwarded-for": "127.0.0.1"},
		"/headers/forwarded RESERVED":         {"forwarded": "for=127.0.0.1"},
		"/headers/client-cert RESERVED":       {"client-cert": "v"},
		"/headers/client-cert-chain RESERVED": {"client-cert-chain": "v"},
		"/headers/true-client-ip RESERVED":    {"true-client-ip": "10.0.0.1"},
		"/headers/X-Real-IP RESERVED":         {"X-Real-IP": "10.0.0.1"},
		"/headers/x-original-url RESERVED":    {"x-original-url": "/admin"},
	} {
		want, _, _ = strings.Cut(want, ",")
		in := b.input("https://example.com/new")
		in.Headers = settings(headers)
		_, err := b.store.Create(t.Context(), b.company, in)
		if got := codes(t, err); got != want {
			t.Errorf("create with %.60q: %s, want %s", slices.Collect(maps.Keys(headers)), got, want)
		}
		_, err = b.store.Update(t.Context(), b.company, s.UUID, subscribers.Settings{Headers: settings(headers)})
		if got := codes(t, err); got != want {
			t.Errorf("update with %.60q: %s, want %s", slices.Collect(maps.Keys(headers)), got, want)
		}
		for _, value := range headers {
			if len(value) > 4 && strings.Contains(err.Error(), value.Reveal()) {
				t.Errorf("the error repeats the value: %v", err)
			}
		}
	}
	after, err := b.store.Get(t.Context(), b.company, s.UUID)
	noErr(t, err)
	wantHeaders(t, after)
}

func text(n int) secret.Text { return secret.Text(strings.Repeat("v", n)) }
