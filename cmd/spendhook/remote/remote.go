// Package remote has the commands that call the API of a running daemon. Each command names its
// operation and fields. Connecting, asking for confirmation, reading pages and printing are shared.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"spendhook/api/client"
	"spendhook/internal/terminal"
)

// Commands has a field for each command of this package.
type Commands struct {
	Subscriber     subscriberCmd     `cmd:"" help:"Manage subscribers: callback URLs and the event types they receive."`
	Event          eventCmd          `cmd:"" help:"Send events, list them, deliver them again."`
	EventType      eventTypeCmd      `cmd:"" help:"Manage the documentation of event types."`
	Company        companyCmd        `cmd:"" help:"Name and list companies, export or erase the data of one."`
	Delivery       deliveryCmd       `cmd:"" help:"List deliveries and dead letters, retry them."`
	Job            jobCmd            `cmd:"" help:"Watch and cancel jobs: recoveries, retries, bulk creations of cards."`
	Card           cardCmd           `cmd:"" help:"Manage payment cards."`
	Reimbursement  reimbursementCmd  `cmd:"" help:"List reimbursement requests."`
	Location       locationCmd       `cmd:"" help:"List locations: cost centers, offices, departments and teams."`
	Statement      statementCmd      `cmd:"" help:"Show billing statements."`
	WebhookKey     webhookKeyCmd     `cmd:"" help:"Manage the keys with which a company's messages are signed."`
	EgressAddress  egressAddressCmd  `cmd:"" help:"List the addresses from which deliveries come, for firewalls."`
	Certificate    certificateCmd    `cmd:"" help:"Manage the client certificate that is presented to receivers."`
	Quarantine     quarantineCmd     `cmd:"" help:"Manage quarantined events, deliveries and subscribers (scope operator)."`
	OAuthClient    oauthClientCmd    `cmd:"" name:"oauth-client" help:"Manage OAuth clients over the API (scopes operator and platform)."`
	ConsoleSession consoleSessionCmd `cmd:"" help:"List and end sessions of the web console."`
	Audit          auditCmd          `cmd:"" help:"Read the audit log (scope operator)."`
	Login          loginCmd          `cmd:"" help:"Save the URL and credentials of a daemon in a profile." example:"spendhook login --url https://hooks.example.com --client-id shc_df359699887e0c772d5757c5 --client-secret-file secret.txt"`
	Profile        profileCmd        `cmd:"" help:"List and delete profiles."`
}

// Terminal has the standard input and outputs of a command.
type Terminal struct {
	In       io.Reader
	Out, Err io.Writer
	Version  string // of this program
}

// UsageError is a mistake on the command line that the parser cannot detect.
type UsageError string

func (e UsageError) Error() string { return string(e) }

// errDone ends a command early, without a failure.
var errDone = errors.New("done")

// session holds the client, the flags and the terminal of one command.
type session struct {
	*client.ClientWithResponses
	connection *Connection
	options    client.Options // of the client
	output     output
	term       *Terminal
}

// confirmation has the flags of commands that send something or cannot be undone.
type confirmation struct {
	Yes    bool `short:"y" help:"Do not ask for confirmation."`
	DryRun bool `help:"Print the request, and do not send it."`
}

// confirm asks for confirmation, unless question is "" or --yes is set. With --dry-run it makes
// the session print its next request instead of sending it.
func (s *session) confirm(c confirmation, question string, args ...any) error {
	if c.DryRun {
		o := s.options
		o.Credentials, o.Token, o.RetryFor = nil, "", -1
		o.Transport = requestPrinter{s.term.Out}
		var err error
		s.ClientWithResponses, err = client.New(s.connection.URL, o)
		return err
	}
	if question == "" || c.Yes {
		return nil
	}
	question = fmt.Sprintf(question, args...)
	if !terminal.Is(s.term.In) {
		return UsageError(question + " Add --yes: the input is not a terminal")
	}
	fmt.Fprintf(s.term.Err, "%s [y/N] ", question)
	var answer string
	_, _ = fmt.Fscanln(s.term.In, &answer)
	if answer != "y" && answer != "yes" && answer != "Y" {
		fmt.Fprintln(s.term.Err, "Nothing was done.")
		return errDone
	}
	return nil
}

// requestPrinter prints a request instead of sending it.
type requestPrinter struct{ out io.Writer }

// RoundTrip ends the command after its first request.
func (d requestPrinter) RoundTrip(req *http.Request) (*http.Response, error) {
	fmt.Fprintf(d.out, "%s %s\n", req.Method, req.URL)
	if req.Body != nil {
		defer req.Body.Close()
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		if len(body) > 0 {
			fmt.Fprintf(d.out, "%s\n", indented(body))
		}
	}
	return nil, errDone
}

// Done reports whether an error ends a command without a failure.
func Done(err error) bool { return errors.Is(err, errDone) }

// readBody reads the body of an answer.
func readBody(resp *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// show prints the object that an operation returned.
func (s *session) show(resp *http.Response, err error) error {
	text, err := readBody(resp, err)
	if err != nil {
		return err
	}
	return s.output.print(s.term.Out, text)
}

// tell prints a message after an operation without an answer body.
func (s *session) tell(resp *http.Response, err error, format string, args ...any) error {
	if _, err := readBody(resp, err); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.term.Out, format+"\n", args...)
	return err
}

// readPage is an operation that reads one page of a list.
type readPage func(ctx context.Context, at page) (*http.Response, error)
