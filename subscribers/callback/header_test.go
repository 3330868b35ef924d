package callback_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"spendhook/internal/invalid"
	"spendhook/internal/secret"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/subscriberstest"
)

type secrets = map[string]secret.Text

// set checks headers and sets them on a subscriber that has none.
func set(headers secrets) error {
	changes := map[string]*secret.Text{}
	for name, value := range headers {
		changes[name] = &value
	}
	var problems invalid.Error
	changes = callback.CheckHeaders(&problems, changes)
	callback.ChangeHeaders(&problems, nil, changes)
	return problems.OrNil()
}

func TestBadHeadersAreRefused(t *testing.T) {
	t.Parallel()
	many := secrets{}
	for i := range 21 {
		many[fmt.Sprintf("X-%d", i)] = "v"
	}
	for want, headers := range map[string]secrets{
		"headers INVALID":                          {"": "v"},
		"headers INVALID,a":                        {"X A": "v"},
		"headers INVALID,b":                        {"X:A": "v"},
		"headers INVALID,c":                        {"X-Ä": "v"},
		"headers INVALID,d":                        {"X\r\nY": "v"},
		"headers INVALID,e":                        {strings.Repeat("x", 101): "v"},
		"headers TOO_MANY":                         many,
		"headers TOO_LONG":                         {"X-A": text(4000), "X-B": text(4000), "X-C": text(200)},
		"/headers/x-a DUPLICATE":                   {"x-a": "1", "X-A": "2"},
		"/headers/X-A INVALID":                     {"X-A": ""},
		"/headers/X-A INVALID,a":                   {"X-A": " v"},
		"/headers/X-A INVALID,b":                   {"X-A": "v\r\nX-B: w"},
		"/headers/X-A INVALID,c":                   {"X-A": "v\x00"},
		"/headers/X-A INVALID,d":                   {"X-A": "v\x7f"},
		"/headers/X-A INVALID,e":                   {"X-A": "ü"},
		"/headers/X-A INVALID,f":                   {"X-A": callback.HiddenValue},
		"/headers/X-A TOO_LONG":                    {"X-A": text(4097)},
		"/headers/HOST RESERVED":                   {"HOST": "v"},
		"/headers/connection RESERVED":             {"connection": "close"},
		"/headers/keep-alive RESERVED":             {"keep-alive": "v"},
		"/headers/TE RESERVED":                     {"TE": "v"},
		"/headers/trailer RESERVED":                {"trailer": "v"},
		"/headers/upgrade RESERVED":                {"upgrade": "h2c"},
		"/headers/proxy-anything RESERVED":         {"proxy-anything": "v"},
		"/headers/transfer-encoding RESERVED":      {"transfer-encoding": "chunked"},
		"/headers/content-length RESERVED":         {"content-length": "0"},
		"/headers/content-type RESERVED":           {"content-type": "v"},
		"/headers/content-encoding RESERVED":       {"content-encoding": "gzip"},
		"/headers/accept-encoding RESERVED":        {"accept-encoding": "gzip"},
		"/headers/user-agent RESERVED":             {"user-agent": "v"},
		"/headers/webhook-id RESERVED":             {"webhook-id": "v"},
		"/headers/signature RESERVED":              {"signature": "v"},
		"/headers/signature-input RESERVED":        {"signature-input": "v"},
		"/headers/content-digest RESERVED":         {"content-digest": "v"},
		"/headers/WEBHOOK-SIGNATURE RESERVED":      {"WEBHOOK-SIGNATURE": "v"},
		"/headers/webhook-else RESERVED":           {"webhook-else": "v"},
		"/headers/cookie RESERVED":                 {"cookie": "v"},
		"/headers/expect RESERVED":                 {"expect": "100-continue"},
		"/headers/idempotency-key RESERVED":        {"idempotency-key": "v"},
		"/headers/x-forwarded-for RESERVED":        {"x-forwarded-for": "127.0.0.1"},
		"/headers/forwarded RESERVED":              {"forwarded": "for=127.0.0.1"},
		"/headers/client-cert RESERVED":            {"client-cert": "v"},
		"/headers/client-cert-chain RESERVED":      {"client-cert-chain": "v"},
		"/headers/true-client-ip RESERVED":         {"true-client-ip": "10.0.0.1"},
		"/headers/X-Real-IP RESERVED":              {"X-Real-IP": "10.0.0.1"},
		"/headers/CF-Connecting-IP RESERVED":       {"CF-Connecting-IP": "10.0.0.1"},
		"/headers/X-Client-IP RESERVED":            {"X-Client-IP": "10.0.0.1"},
		"/headers/True-Client-IP RESERVED":         {"True-Client-IP": "10.0.0.1"},
		"/headers/X-Azure-ClientIP RESERVED":       {"X-Azure-ClientIP": "10.0.0.1"},
		"/headers/client-ip RESERVED":              {"client-ip": "10.0.0.1"},
		"/headers/remote-addr RESERVED":            {"remote-addr": "10.0.0.1"},
		"/headers/x-forwarded RESERVED":            {"x-forwarded": "10.0.0.1"},
		"/headers/forwarded-for RESERVED":          {"forwarded-for": "10.0.0.1"},
		"/headers/CF-Connecting-IPv6 RESERVED":     {"CF-Connecting-IPv6": "::1"},
		"/headers/X-Vercel-Forwarded-For RESERVED": {"X-Vercel-Forwarded-For": "10.0.0.1"},
		"/headers/X-Appengine-User-IP RESERVED":    {"X-Appengine-User-IP": "10.0.0.1"},
		"/headers/X-Rewrite-URL RESERVED":          {"X-Rewrite-URL": "/admin"},
		"/headers/X-HTTP-Method-Override RESERVED": {"X-HTTP-Method-Override": "DELETE"},
		"/headers/x-original-url RESERVED":         {"x-original-url": "/admin"},
	} {
		want, _, _ = strings.Cut(want, ",")
		err := set(headers)
		if got := subscriberstest.Codes(t, err); got != want {
			t.Errorf("%.60q: %s, want %s", slices.Collect(maps.Keys(headers)), got, want)
		}
		for _, value := range headers {
			if len(value) > 4 && strings.Contains(err.Error(), value.Reveal()) {
				t.Errorf("the error repeats the value: %v", err)
			}
		}
	}
}

func text(n int) secret.Text { return secret.Text(strings.Repeat("v", n)) }
