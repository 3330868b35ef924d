package conformance

import (
	"bytes"
	"context"
	"crypto"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"spendhook/internal/pause"
)

// wait waits for a time, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	if !pause.For(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}

// event makes the next event of the company, which the feed has from now on. metadata is a JSON object.
func (r *run) event(metadata string) *event {
	const record = `{"id":"evt_%d","companyUuid":%q,"event":"PAYMENT_PAID","timestamp":"2026-11-20T09:30:00.000Z","metadata":%s}`
	return r.raw("application/json", fmt.Sprintf(record, r.last+1, company, metadata))
}

// raw makes an event with any body.
func (r *run) raw(contentType, body string) *event {
	r.last++
	e := &event{id: fmt.Sprintf("evt_%d", r.last), sequence: r.last - r.lost, kind: "PAYMENT_PAID", contentType: contentType, body: []byte(body)}
	r.daemon.change(func(d *daemon) { d.log = append(d.log, e) })
	return e
}

// lose takes the last events from the feed, as a failover of Redis does. Later ones get their numbers.
func (r *run) lose(count int) {
	r.lost += int64(count)
	r.daemon.change(func(d *daemon) { d.log = d.log[:len(d.log)-count] })
}

// forged makes an event that is not in the feed: nobody emitted it.
func (r *run) forged() *event {
	e := r.event(`{}`)
	r.daemon.change(func(d *daemon) { d.log = d.log[:len(d.log)-1] })
	return e
}

func (r *run) events(count int) []*event {
	all := make([]*event, count)
	for i := range all {
		all[i] = r.event(fmt.Sprintf(`{"n":%d}`, i))
	}
	return all
}

// worked checks that each event was worked on exactly once.
func (r *run) worked(events ...*event) {
	r.times(1, events...)
}

// never checks that no event was worked on.
func (r *run) never(events ...*event) {
	r.times(0, events...)
}

func (r *run) times(want int, events ...*event) {
	if r.err != nil {
		return
	}
	ids, err := r.program.inbox(r.ctx)
	if err != nil {
		r.fail(err)
		return
	}
	count := map[string]int{}
	for _, id := range ids {
		count[id]++
	}
	wrong := 0
	for _, e := range events {
		if count[e.id] != want {
			if wrong++; wrong == 1 {
				r.failf("%s was worked on %d times, not %d", e.id, count[e.id], want)
			}
		}
	}
	if wrong > 1 {
		r.err = fmt.Errorf("%w, and %d other events", r.err, wrong-1)
	}
}

// inOrder checks that the events were the last ones that were worked on, in this order.
func (r *run) inOrder(events ...*event) {
	if r.err != nil {
		return
	}
	ids, err := r.program.inbox(r.ctx)
	if err != nil {
		r.fail(err)
		return
	}
	want := make([]string, len(events))
	for i, e := range events {
		want[i] = e.id
	}
	if len(ids) < len(want) || !slices.Equal(ids[len(ids)-len(want):], want) {
		r.failf("the last ids are not %v", want)
	}
}

func receiving() []testCase {
	return []testCase{
		{"a delivery", func(r *run) {
			e := r.event(`{"amount":"12.50"}`)
			r.deliver(e, http.StatusNoContent)
			r.worked(e)
		}},
		{"a delivery that is repeated three times", func(r *run) {
			e := r.event(`{}`)
			for range 4 {
				r.deliver(e, http.StatusNoContent)
			}
			r.worked(e)
		}},
		{"deliveries of one event at the same time", testSameTime},
		{"deliveries out of order", func(r *run) {
			events := r.events(5)
			slices.Reverse(events)
			for _, e := range events {
				r.deliver(e, http.StatusNoContent)
			}
			r.inOrder(events...)
		}},
		{"a forged delivery", testForged},
		{"a delivery that is too old", func(r *run) {
			for _, off := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
				e := r.forged()
				d := r.delivery(e)
				d.signer.at = d.signer.at.Add(off)
				r.attempt(d, http.StatusUnauthorized)
				r.never(e)
			}
		}},
		{"a delivery by each secret of a rotation", func(r *run) {
			e := r.event(`{}`)
			d := r.delivery(e)
			d.signer.secrets = []string{newSecret(), spareSecret}
			r.attempt(d, http.StatusNoContent)
			r.worked(e)
		}},
		{"a delivery by another published key", func(r *run) {
			for _, key := range r.daemon.published {
				e := r.event(`{}`)
				d := r.delivery(e)
				d.signer.key = key
				r.attempt(d, http.StatusNoContent)
				r.worked(e)
			}
		}},
		{"a v1a signature", testV1a},
		{"a challenge", testChallenge},
		{"a handshake of CloudEvents", testHandshake},
		{"a thin event", func(r *run) {
			e := r.raw("application/json", "")
			e.body = fmt.Appendf(nil, `{"id":%q,"companyUuid":%q,"event":"PAYMENT_PAID","timestamp":"2026-11-20T09:30:00.000Z","url":"https://api.example.com/api/v1/events/x"}`, e.id, company)
			r.deliver(e, http.StatusNoContent)
			r.worked(e)
		}},
		{"a CloudEvents event", func(r *run) {
			e := r.raw("application/cloudevents+json", "")
			e.body = fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"https://api.example.com/companies/%s","type":"PAYMENT_PAID","subject":%q,"time":"2026-11-20T09:30:00.000Z","datacontenttype":"application/json","data":{"fail":"no"}}`, e.id, company, company)
			r.deliver(e, http.StatusNoContent)
			r.worked(e)
		}},
		{"bodies that are not what is expected", testBodies},
		{"a body in several scripts", func(r *run) {
			e := r.event(`{"name":"Zoë 🦀 \u0000 \ud83d\ude00 漢字","\u00e9":"é"}`)
			r.deliver(e, http.StatusNoContent)
			r.worked(e)
		}},
		{"large bodies", testLarge},
		{"work that fails twice", func(r *run) {
			e := r.event(`{"fail":true}`)
			r.deliver(e, http.StatusInternalServerError)
			r.never(e)
			r.deliver(e, http.StatusInternalServerError)
			r.never(e)
			r.deliver(e, http.StatusNoContent)
			r.deliver(e, http.StatusNoContent)
			r.worked(e)
		}},
	}
}

func testSameTime(r *run) {
	for i := 0; i < 5 && r.err == nil; i++ {
		e := r.event(`{}`)
		failed := make(chan error, 8)
		for range cap(failed) {
			go func() { failed <- r.until(r.ctx, r.running, e, http.StatusNoContent, http.StatusInternalServerError) }()
		}
		for range cap(failed) {
			if err := <-failed; err != nil {
				r.fail(err)
			}
		}
		r.worked(e)
	}
}

func (s *suite) running() *program { return s.program }

// testForged sends what somebody without the secret and the keys can send.
func testForged(r *run) {
	valid := r.event(`{}`)
	r.deliver(valid, http.StatusNoContent)
	e := r.forged()
	refuse := func(what string, change func(*delivery)) {
		if r.err != nil {
			return
		}
		d := r.delivery(e)
		change(&d)
		r.attempt(d, http.StatusUnauthorized)
		if r.err != nil {
			r.err = fmt.Errorf("%s: %w", what, r.err)
		}
	}
	refuse("another secret", func(d *delivery) { d.signer.secrets = []string{newSecret()} })
	refuse("another key", func(d *delivery) { d.signer.key = newEd25519() })
	refuse("another body", func(d *delivery) { d.body = append(bytes.Clone(e.body), ' ') })
	for name, value := range map[string][]string{
		"Webhook-Id": {"evt_other"}, "Webhook-Timestamp": {"179516700²"}, "Webhook-Signature": {"v1,AAAA"}, "Webhook-Sequence": {"1"}, "Webhook-Previous": {"1"},
		"Signature": {"webhook=:AAAA:"}, "Signature-Input": {"webhook=((((("}, "Content-Digest": {"sha-256=:AAAA:"}, "Content-Type": {"text/plain"},
	} {
		refuse("another "+name, func(d *delivery) { d.header = http.Header{name: value} })
		refuse("no "+name, func(d *delivery) { d.header = http.Header{name: nil} })
	}
	r.never(e)
}

// testV1a starts a second program, which demands v1a signatures only and has a fixed token.
func testV1a(r *run) {
	p, err := r.startProgram(r.ctx, map[string]string{
		"SPENDHOOK_SECRET": "", "ORIGIN": "", "SPENDHOOK_TOKEN": fixedToken, "SPENDHOOK_CLIENT_ID": "", "SPENDHOOK_CLIENT_SECRET": "",
	})
	if err != nil {
		r.fail(err)
		return
	}
	defer p.kill()
	attempt := func(d delivery, want int) {
		status, answer, err := r.send(r.ctx, p, d)
		r.fail(err)
		if status != want {
			r.failf("the delivery of %s was answered %d, not %d: %.200q", d.event.id, status, want, answer)
		}
	}
	e := r.event(`{}`)
	attempt(r.delivery(e), http.StatusNoContent)
	unknown := r.forged()
	d := r.delivery(unknown)
	d.signer.v1a = newEd25519()
	attempt(d, http.StatusUnauthorized)
	d = r.delivery(unknown)
	d.signer.v1a = nil
	attempt(d, http.StatusUnauthorized)
	d = r.delivery(unknown)
	d.signer.at = d.signer.at.Add(-10 * time.Minute)
	attempt(d, http.StatusUnauthorized)
	if r.database == "" { // two programs without a database share nothing
		r.deliver(e, http.StatusNoContent)
	}
	if missing, err := p.catchUp(r.ctx); err != nil {
		r.failf("with a fixed token: %w", err)
	} else if r.database != "" && missing != 0 {
		r.failf("%d events are missing after a delivery to the other program", missing)
	}
	r.worked(e)
	r.never(unknown)
}

func testChallenge(r *run) {
	e := r.forged()
	e.body = fmt.Appendf(nil, `{"id":%q,"companyUuid":%q,"event":"SUBSCRIBER_CHALLENGE","timestamp":"2026-11-20T09:30:00.000Z","metadata":{"challenge":"YCNQ2-é","subscriberUuid":%q}}`, e.id, company, subscriber)
	answer := r.attempt(r.delivery(e), http.StatusOK)
	if r.err == nil && answer != "YCNQ2-é" {
		r.failf("the challenge was answered with %q", answer)
	}
	d := r.delivery(e)
	d.signer.secrets = []string{newSecret()}
	if answer := r.attempt(d, http.StatusUnauthorized); strings.Contains(answer, "YCNQ2") {
		r.failf("a forged challenge was answered")
	}
	r.never(e)
}

// testHandshake asks as the daemon does, and as others do. A second program knows no origin.
func testHandshake(r *run) {
	r.ask(r.program, http.MethodOptions, daemonOrigin, true)
	r.ask(r.program, http.MethodOptions, strings.ToUpper(daemonOrigin), true)
	for _, from := range []string{"evil.example.com", daemonOrigin + ".example.com", "*", ""} {
		r.ask(r.program, http.MethodOptions, from, false)
	}
	r.ask(r.program, http.MethodGet, daemonOrigin, false)
	p, err := r.startProgram(r.ctx, map[string]string{"SPENDHOOK_ORIGIN": ""})
	if err != nil {
		r.fail(err)
		return
	}
	defer p.kill()
	r.ask(p, http.MethodOptions, daemonOrigin, false)
	r.ask(p, http.MethodOptions, "", false)
}

// ask makes the handshake, and checks whether the program consents.
func (r *run) ask(p *program, method, from string, want bool) {
	if r.err != nil {
		return
	}
	req, err := http.NewRequestWithContext(r.ctx, method, p.url+hookPath, http.NoBody)
	if err != nil {
		r.fail(err)
		return
	}
	req.Header.Set("WebHook-Request-Origin", from)
	req.Header.Set("WebHook-Request-Rate", "120")
	resp, err := p.http.Do(req)
	if err != nil {
		r.failf("%s from %q: %w", method, from, err)
		return
	}
	_ = resp.Body.Close()
	status, origin, rate := http.StatusMethodNotAllowed, "", ""
	if want {
		status, origin, rate = http.StatusOK, daemonOrigin, "*"
	}
	got := resp.Header
	if resp.StatusCode != status || got.Get("WebHook-Allowed-Origin") != origin || got.Get("WebHook-Allowed-Rate") != rate || got.Get("Allow") != http.MethodPost {
		r.failf("%s from %q was answered %d, with %v", method, from, resp.StatusCode, got)
	}
}

func testBodies(r *run) {
	for _, body := range []string{
		"", " ", "no JSON", "[1]", `"text"`, "null", "5", "{", `{"event":5,"metadata":[],"timestamp":{},"companyUuid":null}`, `{"metadata":null}`,
		`{"event":"SUBSCRIBER_CHALLENGE","metadata":"none"}`, `{"event":"SUBSCRIBER_CHALLENGE","metadata":{"challenge":5}}`,
		`{"event":"` + strings.Repeat("x", 5000) + `","timestamp":"yesterday"}`, strings.Repeat("[", 20000),
	} {
		e := r.raw("application/json", body)
		r.deliver(e, http.StatusNoContent)
		r.worked(e)
	}
	binary := r.forged() // the feed has text only
	binary.contentType, binary.body = "application/octet-stream", []byte("\xff\xfe\x00\xc3(")
	r.deliver(binary, http.StatusNoContent)
	r.worked(binary)
}

func testLarge(r *run) {
	for _, size := range []int{256 << 10, 1 << 20} {
		e := r.event(`{}`)
		e.body = append(e.body, bytes.Repeat([]byte(" "), size-len(e.body))...)
		r.deliver(e, http.StatusNoContent)
		r.worked(e)
	}
	e := r.forged()
	e.body = append(e.body, bytes.Repeat([]byte(" "), 1<<20+1-len(e.body))...)
	r.deliver(e, http.StatusRequestEntityTooLarge)
	e.body = append(e.body, bytes.Repeat([]byte(" "), 2<<20)...)
	if r.err == nil { // a receiver may close the connection before it has read that much
		status, _, err := r.send(r.ctx, r.program, r.delivery(e))
		if err == nil && status != http.StatusRequestEntityTooLarge {
			r.failf("a body of 3 MiB was answered %d", status)
		}
	}
	r.program.http.CloseIdleConnections() // a receiver may close them after such an answer
	r.never(e)
}

// publishing has the cases that wait for the program to read the keys again, which it does after 5 seconds.
func publishing() []testCase {
	return []testCase{
		{"keys that are rotated", func(r *run) {
			e := r.event(`{}`)
			r.rotate()
			r.arrives(e, http.StatusUnauthorized)
			r.worked(e)
		}},
		{"a JWK Set that cannot be read for a while", func(r *run) {
			e := r.event(`{}`)
			r.daemon.change(func(d *daemon) { d.keysGone = true })
			r.rotate()
			if r.err == nil {
				r.fail(r.until(r.ctx, r.running, e, http.StatusServiceUnavailable, http.StatusUnauthorized))
			}
			r.never(e)
			r.daemon.change(func(d *daemon) { d.keysGone = false })
			r.arrives(e, http.StatusServiceUnavailable, http.StatusUnauthorized)
			r.worked(e)
		}},
	}
}

// rotate signs with a new key of the other algorithm.
func (r *run) rotate() {
	var key crypto.Signer = newEd25519()
	if _, ok := r.daemon.sender.key.Public().(interface{ Bytes() ([]byte, error) }); !ok {
		key = newECDSA()
	}
	r.daemon.sender.key = key
	r.daemon.change(func(d *daemon) { d.published = append(d.published, key) })
}

// arrives delivers until the event is taken; only the other statuses may be answered before.
func (r *run) arrives(e *event, others ...int) {
	if r.err == nil {
		r.fail(r.until(r.ctx, r.running, e, http.StatusNoContent, others...))
	}
}

// concurrently calls do for each event in four goroutines, and returns the first error, which ends it.
func concurrently(events []*event, do func(*event) error) error {
	work := make(chan *event)
	var failed atomic.Bool
	var once sync.Once
	var first error
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for e := range work {
				if failed.Load() {
					continue
				}
				if err := do(e); err != nil {
					failed.Store(true)
					once.Do(func() { first = err })
				}
			}
		})
	}
	for _, e := range events {
		work <- e
	}
	close(work)
	wg.Wait()
	return first
}
