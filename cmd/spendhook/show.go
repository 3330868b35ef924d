package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
)

// show tells a developer what the daemon does. It is for one goroutine.
type show struct {
	out         io.Writer
	paint       paint
	base, token string
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

func (s *show) accepted(e events.Event, status events.Status) {
	fmt.Fprintf(s.out, "  %s   %-29s %s\n", s.paint(green, string(status)), e.Type, e.ID)
}

func (s *show) posted(e posting) {
	color := green
	if e.Answered/100 != 2 {
		color = red
	}
	fmt.Fprintf(s.out, "  POST %s   %-29s %s   %s\n", s.paint(color, strconv.Itoa(e.Answered)), e.eventType, e.ID, s.paint(dim, "signature "+proof(e.Verified)))
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

// hints are lines to paste into another terminal. The token is good for a day.
func (s *show) hints(deliveryID string) {
	s.heading("Now you, in another terminal")
	fmt.Fprintf(s.out, "\nexport TOKEN=%s\n", s.token)
	if strings.HasPrefix(s.base, "https://") {
		fmt.Fprintln(s.out, s.paint(dim, "# by TLS: add --cacert, --cert and --key to each, as in docs/tls.md"))
	}
	now := time.Now().UTC().Format(time.RFC3339)
	s.hint("emit an event (twice: the second is a DUPLICATE)",
		"/api/v1/events -H 'Content-Type: application/json' -d '{\"id\":\"my-1\",\"event\":\"PAYMENT_PAID\",\"timestamp\":\""+now+"\",\"metadata\":{\"amount\":\"12.50\"}}'")
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

func (s *show) hint(what, request string) {
	fmt.Fprintf(s.out, "\n%s\ncurl -sS -H \"Authorization: Bearer $TOKEN\" %s%s\n", s.paint(dim, "# "+what), s.base, request)
}
