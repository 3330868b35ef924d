package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spendhook/api/gen"
)

// A subscriber that the daemon does not reach: its feed is read and forwarded.
func TestForwardingOfAFeed(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "").start(t)
	local := newEndpoint(t, func(id string) int {
		if id == "evt_1" {
			return http.StatusTeapot
		}
		return http.StatusNoContent
	})
	sub := local.subscribe(t, d, "PAYMENT_PAID").UUID.String()
	d.cli(t, "", "subscriber", "pause", sub).want(t, exitOK, "", "")
	send := func(from, n int) {
		t.Helper()
		d.cli(t, eventLines(from, n, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "", "")
	}
	send(0, 3)

	d.cli(t, "", "event", "feed", sub, "-o", "name").want(t, exitOK, "evt_0\nevt_1\nevt_2\n", "")
	d.cli(t, "", "event", "feed", sub, "--after", "1").want(t, exitOK, "SEQUENCE   ACCEPTED", "")
	d.cli(t, "", "event", "feed", sub, "--after", "2", "-o", "json").want(t, exitOK, `{"acceptedAt":`, "")
	d.cli(t, "", "event", "feed", sub, "--after", "2", "-o", "yaml").want(t, exitOK, "- acceptedAt: ", "")
	d.cli(t, "", "event", "feed", sub, "--new").want(t, exitUsage, "", "--new needs --follow")
	d.cli(t, "", "event", "feed", sub, "--after", "9").want(t, exitFailure, "", "")

	forward := func(args ...string) result {
		return d.cli(t, "", "listen", append([]string{"--forward-to", local.URL + "/hook", "--subscriber", sub}, args...)...)
	}
	r := forward("--after", "0", "--count", "3")
	r.want(t, exitOK, "418  PAYMENT_PAID  evt_1", "forwarding to "+local.URL+"/hook, from the event after number 0")
	if got := strings.Count(r.stdout, "204  PAYMENT_PAID  evt_"); got != 2 {
		t.Errorf("%d of 2 were taken:\n%s", got, r.stdout)
	}
	local.awaits(t, 2)

	ended := make(chan result, 1)
	out, errs := &lockedBuffer{}, newFirstLine()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		args := []string{"listen", "--url", d.api, "--token-file", secretFile(t, d.token), "--forward-to", local.URL, "--subscriber", sub}
		code := runWith(ctx, args, stdio{In: strings.NewReader(""), Out: out, Err: errs})
		errs.close()
		ended <- result{code, out.String(), errs.String()}
	}()
	if first := errs.wait(t); !strings.HasSuffix(first, "from the event after number 3") {
		t.Errorf("it begins with %q", first)
	}
	send(3, 2)
	local.awaits(t, 4)
	eventually(t, time.Minute, "what it prints after the answer", func() bool { return strings.Contains(out.String(), "evt_4") })
	cancel()
	(<-ended).want(t, exitOK, "evt_4", "")
	if _, posts := local.of("evt_0"); posts != 1 {
		t.Errorf("an event that was forwarded before came %d times", posts)
	}

	local.Close()
	forward("--after", "4", "--count", "1").want(t, exitOK, "", "event evt_4 (5) was not accepted: ")
	for args, complaint := range map[string]string{
		"--forward-to localhost:3000 --subscriber " + sub:        "must begin with http:// or https://",
		"--forward-to http://127.0.0.1:1":                        "--forward-to needs --subscriber or --subscribe",
		"--subscriber " + sub:                                    "--subscriber needs --forward-to",
		"--forward-to http://a --subscribe --subscriber " + sub:  "can't be used together",
		"--forward-to http://a --subscribe --keys-url http://b":  "can't be used together",
		"--forward-to http://a --subscribe --signature standard": "--signature needs --subscribe, and is not for --forward-to",
	} {
		d.cli(t, "", "listen", strings.Fields(args)...).want(t, exitUsage, "", complaint)
	}
}

// With --subscribe the command has a subscriber of its own while it runs, to which nothing is delivered.
func TestForwardingToANewSubscriber(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "").start(t)
	var came atomic.Int64
	local := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("webhook-signature"), "v1,") {
			came.Add(1)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(local.Close)
	ended := make(chan result, 1)
	errs := newFirstLine()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		args := []string{"listen", "--url", d.api, "--token-file", secretFile(t, d.token), "--forward-to", local.URL, "--subscribe", "--events", "PAYMENT_PAID", "--count", "2"}
		out := &lockedBuffer{}
		code := runWith(ctx, args, stdio{In: strings.NewReader(""), Out: out, Err: errs})
		errs.close()
		ended <- result{code, out.String(), errs.String()}
	}()
	if first := errs.wait(t); !strings.HasPrefix(first, "subscribed; the signing secret is whsec_") {
		t.Errorf("it begins with %q", first)
	}
	eventually(t, patience, "it follows the feed", func() bool { return strings.Contains(errs.String(), "forwarding to") })
	var list gen.SubscriberPage
	d.read(t, "/api/v1/subscribers", &list)
	if len(list.Content) != 1 || list.Content[0].Enabled {
		t.Errorf("the subscriber: %+v", list.Content)
	}
	d.cli(t, eventLines(0, 2, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "", "")
	(<-ended).want(t, exitOK, "204  PAYMENT_PAID  evt_1", "")
	if n := came.Load(); n != 2 {
		t.Errorf("%d signed events came", n)
	}
	if d.read(t, "/api/v1/subscribers", &list); len(list.Content) != 0 {
		t.Errorf("it is left: %+v", list.Content)
	}
}
