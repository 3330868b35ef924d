package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/events/publish"
)

// show prints the daemon's work for a developer.
type show struct {
	out         io.Writer
	paint       paint
	base, token string
	curl        string // how to begin a request, "" for curl -sS
}

func newShow(out io.Writer, base, token string) *show {
	return &show{out: out, paint: painter(out), base: base, token: token}
}

func (s *show) welcome(adminAddress, consoleLink string) {
	fmt.Fprintf(s.out, "\n%s\n\n", s.paint(bold, "spendhook is running, for this machine only"))
	fmt.Fprintf(s.out, "  API    %s   %s\n", s.base, s.paint(dim, "documentation at /docs"))
	fmt.Fprintf(s.out, "  admin  http://%s   %s\n", adminAddress, s.paint(dim, "/readyz, /metrics, /debug/pprof"))
	fmt.Fprintf(s.out, "  console, once and within a minute (for another link: spendhook console)\n         %s\n", consoleLink)
}

func (s *show) heading(text string) {
	fmt.Fprintf(s.out, "\n%s\n", s.paint(bold, text))
}

func (s *show) accepted(e events.Event, status publish.Status) {
	fmt.Fprintf(s.out, "  %s   %-29s %s\n", s.paint(green, string(status)), e.Type, e.ID)
}

func (s *show) posted(e received) {
	color := green
	if e.Answered/100 != 2 {
		color = red
	}
	fmt.Fprintf(s.out, "  POST %s   %-29s %s   %s\n", s.paint(color, strconv.Itoa(e.Answered)), typeOf(e.Body), e.ID, s.paint(dim, "signature "+proof(e.Verified)))
}

func (s *show) delivery(d delivery.Delivery) {
	color := green
	if d.Status != delivery.StatusDelivered {
		color = cyan
	}
	attempts := make([]string, len(d.Attempts))
	for i, a := range d.Attempts {
		attempts[i] = fmt.Sprintf("attempt %d: %d", a.Number, a.StatusCode)
	}
	if next := d.NextAttemptAt(); next != nil {
		attempts = append(attempts, "next at "+next.Local().Format("15:04:05"))
	}
	fmt.Fprintf(s.out, "  %s  %-29s %s   %s\n", s.paint(color, fmt.Sprintf("%-9s", d.Status)), d.EventType, d.ID, strings.Join(attempts, ", "))
}

// hints prints commands to paste into another terminal. The token is valid for a day.
func (s *show) hints(deliveryID string) {
	s.heading("Try it in another terminal")
	fmt.Fprintf(s.out, "\nexport TOKEN=%s\n%s\n", s.token, s.paint(dim, "# for the command line, bin/spendhook help: export SPENDHOOK_TOKEN=$TOKEN"))
	s.hintEmit()
	s.hint("list deliveries", "/api/v1/deliveries")
	if deliveryID != "" {
		s.hint("read one, with its attempts", "/api/v1/deliveries/"+deliveryID)
	}
	s.hint("list subscribers", "/api/v1/subscribers")
	if deliveryID != "" {
		s.hint("list cards of the demo company", "/api/v3/cards")
		s.hint("read a page of its reimbursements", "/api/v3/reimbursements")
	}
	fmt.Fprintln(s.out)
}

func (s *show) hintEmit() {
	now := time.Now().UTC().Format(time.RFC3339)
	s.hint("emit an event (twice: the second is a DUPLICATE)",
		"/api/v1/events -H 'Content-Type: application/json' -d '{\"id\":\"my-1\",\"event\":\"PAYMENT_PAID\",\"timestamp\":\""+now+"\",\"metadata\":{\"amount\":\"12.50\"}}'")
}

func (s *show) hint(what, request string) {
	fmt.Fprintf(s.out, "\n%s\n%s -H \"Authorization: Bearer $TOKEN\" %s%s\n", s.paint(dim, "# "+what), cmp.Or(s.curl, "curl -sS"), s.base, request)
}

// firstLook prints the addresses of a quickstart and requests with its certificates.
func (s *show) firstLook(adminAddress, dir, clientID string, warnings []string) {
	fmt.Fprintf(s.out, "\n%s\n\n", s.paint(bold, "spendhook is running, for a first look: its certificates are good for 90 days"))
	fmt.Fprintf(s.out, "  API     %s   %s\n", s.base, s.paint(dim, "documentation at /docs"))
	fmt.Fprintf(s.out, "  admin   http://%s   %s\n", adminAddress, s.paint(dim, "/readyz, /metrics"))
	fmt.Fprintf(s.out, "  client  %s   %s\n", clientID, s.paint(dim, "presents client.pem, has no secret"))
	for _, warning := range warnings {
		fmt.Fprintf(s.out, "  note    %s\n", s.paint(red, warning))
	}
	s.heading("Try it in another terminal")
	fmt.Fprintf(s.out, "\n%s\n", s.paint(dim, "# of a container, copy the directory first: docker cp CONTAINER:"+dir+" . && cd quickstart"))
	fmt.Fprintf(s.out, "cd '%s'\n", dir)
	fmt.Fprintf(s.out, "\n%s\n", s.paint(dim, "# a token, good for an hour"))
	fmt.Fprintf(s.out, "TOKEN=$(%s %s/oauth/token -d grant_type=client_credentials -d client_id=%s | sed 's/.*\"access_token\":\"\\([^\"]*\\)\".*/\\1/')\n", s.curl, s.base, clientID)
	s.hint("register a subscriber: replace the callback URL by a public https address of yours",
		"/api/v1/subscribers -H 'Content-Type: application/json' -d '{\"name\":\"mine\",\"callbackUrl\":\"https://hooks.example.com/\",\"events\":[\"PAYMENT_PAID\"]}'")
	s.hintEmit()
	s.hint("see what happened to the event", "/api/v1/events/my-1/explain")
	s.hint("list subscribers", "/api/v1/subscribers")
	fmt.Fprintf(s.out, "\n%s\n", s.paint(dim, "# the same with the command line, which then needs no other flags (spendhook help):"))
	fmt.Fprintf(s.out, "%s\n", s.paint(dim, "# spendhook login --url "+s.base+" --client-id "+clientID+" --no-secret --cacert ca.pem --cert client.pem --key client-key.pem"))
	fmt.Fprintln(s.out)
}
