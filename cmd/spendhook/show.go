package main

import (
	"fmt"
	"io"
	"time"
)

// show prints addresses and example requests for a developer.
type show struct {
	out  io.Writer
	base string // URL of the API
	curl string // the beginning of a request
}

func (s *show) welcome(adminAddress, consoleLink string) {
	fmt.Fprintf(s.out, `
spendhook is running, for this machine only

  API    %s   documentation at /docs
  admin  http://%s   /readyz, /metrics, /debug/pprof
  console, by a link that works once, within a minute (another link: spendhook console)
         %s
`, s.base, adminAddress, consoleLink)
}

// hints prints commands to paste into another terminal. The token is valid for a day.
func (s *show) hints(token, deliveryID string) {
	fmt.Fprintf(s.out, "\nTry it in another terminal\n\n# of the company %s\nexport TOKEN=%s\n# for the command line, bin/spendhook help: export SPENDHOOK_TOKEN=$TOKEN SPENDHOOK_URL=%s\n", developerCompany, token, s.base)
	s.hintEmit()
	s.hint("list deliveries", "/api/v1/deliveries")
	s.hint("list subscribers", "/api/v1/subscribers")
	if deliveryID != "" { // of the demo
		s.hint("read one delivery, with its attempts", "/api/v1/deliveries/"+deliveryID)
		s.hint("list cards of the demo company", "/api/v3/cards")
		s.hint("read a page of its reimbursements", "/api/v3/reimbursements")
	}
	fmt.Fprintln(s.out)
}

func (s *show) hintEmit() {
	s.hint("emit an event (twice: the second is a DUPLICATE)", fmt.Sprintf(
		`/api/v1/events -H 'Content-Type: application/json' -d '{"id":"my-1","event":"PAYMENT_PAID","timestamp":"%s","metadata":{"amount":"12.50"}}'`,
		time.Now().UTC().Format(time.RFC3339)))
}

func (s *show) hint(what, request string) {
	fmt.Fprintf(s.out, "\n# %s\n%s -H \"Authorization: Bearer $TOKEN\" %s%s\n", what, s.curl, s.base, request)
}

// firstLook prints the addresses of a quickstart and requests with its certificates.
func (s *show) firstLook(adminAddress, dir, clientID string, warnings []string) {
	fmt.Fprintf(s.out, `
spendhook is running, for a first look: its certificates are valid for 90 days

  API     %s   documentation at /docs
  admin   http://%s   /readyz, /metrics
  client  %s   presents client.pem, has no secret
`, s.base, adminAddress, clientID)
	for _, warning := range warnings {
		fmt.Fprintf(s.out, "  note    %s\n", warning)
	}
	fmt.Fprintf(s.out, `
Try it in another terminal

# of a container, copy the directory first: docker cp CONTAINER:%[1]s . && cd quickstart
cd '%[1]s'

# a token, valid for an hour
TOKEN=$(%[2]s %[3]s/oauth/token -d grant_type=client_credentials -d client_id=%[4]s | sed 's/.*"access_token":"\([^"]*\)".*/\1/')
`, dir, s.curl, s.base, clientID)
	s.hint("register a subscriber: replace the callback URL by a public https address of yours",
		`/api/v1/subscribers -H 'Content-Type: application/json' -d '{"name":"mine","callbackUrl":"https://hooks.example.com/","events":["PAYMENT_PAID"]}'`)
	s.hintEmit()
	s.hint("see what happened to the event", "/api/v1/events/my-1/explain")
	s.hint("list subscribers", "/api/v1/subscribers")
	fmt.Fprintf(s.out, `
# the same with the command line, which then needs no other flags (spendhook help):
# spendhook login --url %s --client-id %s --no-secret --cacert ca.pem --cert client.pem --key client-key.pem

`, s.base, clientID)
}
