package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/api/client"
	"spendhook/cmd/spendhook/remote"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/internal/pause"
	"spendhook/internal/terminal"
)

type listenCmd struct {
	remote.Connection

	ForwardTo  string     `placeholder:"URL" and:"forward" xor:"subscribe,public,delay" help:"Forward the feed of --subscriber to this address, instead of listening. Works behind a firewall."`
	Subscriber *uuid.UUID `predictor:"subscriber" and:"forward" help:"With --forward-to: UUID of the subscriber whose events are forwarded."`
	After      *int64     `help:"With --forward-to: begin after the event with this sequence number; 0 begins with the oldest (default: only new events)."`

	Addr       string        `default:"127.0.0.1:8088" help:"Address to listen on; port 0 picks a free port."`
	TLSCert    string        `placeholder:"FILE" and:"tls" help:"Server certificate for https (PEM)."`
	TLSKey     string        `placeholder:"FILE" and:"tls" help:"Key of the certificate (PEM)."`
	SecretFile []string      `sep:"none" placeholder:"FILE" help:"File with a signing secret to verify with; repeat the flag while a secret rotates. SPENDHOOK_SECRET holds a secret itself."`
	Status     int           `default:"204" help:"HTTP status of the answers."`
	Delay      time.Duration `xor:"delay" help:"Delay before each answer."`
	Count      int           `help:"Stop after this many deliveries."`
	Subscribe  bool          `xor:"subscribe" help:"Create a subscriber for this receiver, and delete it at the end."`
	Events     []string      `aliases:"event" default:"PAYMENT_PAID,CARD_CREATION_REQUEST_CREATED,CARD_CREATION_REQUEST_ERROR" help:"With --subscribe: event types to receive."`
	PublicURL  string        `xor:"public" help:"With --subscribe: the address at which the daemon reaches this receiver (default: the listen address)."`
}

// Validate checks the status and the scheme of --forward-to.
func (c *listenCmd) Validate() error {
	if c.Status < 200 || c.Status > 599 {
		return errors.New("--status must be 200 to 599")
	}
	if c.ForwardTo != "" && !strings.HasPrefix(c.ForwardTo, "http://") && !strings.HasPrefix(c.ForwardTo, "https://") {
		return errors.New("--forward-to must begin with http:// or https://")
	}
	return nil
}

// Run receives or forwards deliveries until it is interrupted or has handled Count of them. It
// fails if a received delivery was not signed with one of the secrets.
func (c *listenCmd) Run(ctx context.Context, term *stdio) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.ForwardTo != "" {
		return c.forward(ctx, term)
	}
	ctx, done := context.WithCancel(ctx)
	defer done()
	secrets, err := readSecrets(c.SecretFile)
	if err != nil {
		return err
	}
	r := &receiver{
		secrets: secrets, delay: c.Delay, left: c.Count, done: done, status: c.Status, print: printer(term.Out),
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Addr)
	if err != nil {
		return err
	}
	address := "http://" + listener.Addr().String()
	if c.TLSCert != "" {
		address = "https://" + listener.Addr().String()
	}
	fmt.Fprintf(term.Err, "listening on %s\n", address)
	unsubscribe, err := c.subscribe(ctx, r, address, term)
	if err != nil {
		listener.Close()
		return err
	}
	defer unsubscribe()
	server := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute}
	return r.serve(ctx, func() error {
		if c.TLSCert != "" {
			return server.ServeTLS(listener, c.TLSCert, c.TLSKey)
		}
		return server.Serve(listener)
	}, server.Shutdown)
}

// subscribe creates a subscriber for the receiver if --subscribe is set; unsubscribe deletes it.
func (c *listenCmd) subscribe(ctx context.Context, r *receiver, address string, term *stdio) (unsubscribe func(), err error) {
	if !c.Subscribe {
		return func() {}, nil
	}
	api, err := c.Open(term)
	if err != nil {
		return nil, err
	}
	if c.PublicURL != "" {
		address = c.PublicURL
	}
	created, err := api.CreateSubscriberWithResponse(ctx, &client.CreateSubscriberParams{CompanyUUID: c.CompanyUUID}, client.SubscriberCreate{
		Name: "spendhook listen", CallbackURL: address, Events: c.Events,
	})
	if err != nil {
		return nil, err
	}
	id, secret := created.JSON201.UUID, created.JSON201.Secret
	r.addSecret(secret)
	fmt.Fprintf(term.Err, "subscribed; the signing secret is %s\n", secret)
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if _, err := api.DeleteSubscriberWithResponse(ctx, id, &client.DeleteSubscriberParams{CompanyUUID: c.CompanyUUID}); err != nil {
			fmt.Fprintf(term.Err, "unsubscribe: %v\n", err)
		}
	}, nil
}

// receiver answers deliveries and passes each to print.
type receiver struct {
	delay  time.Duration
	status int // of the answer, unless the signature is wrong
	print  func(received)
	done   context.CancelFunc // called when left reaches 0

	mu         sync.Mutex
	secrets    []string
	left       int // deliveries until done is called; 0 at the start means no limit
	unverified int // deliveries without a valid signature
}

// received is one delivery as it came in.
type received struct {
	At       time.Time
	ID       string
	Body     []byte
	Verified error // nil: verified; errNoSecret: not checked, for lack of a secret
	Answered int
}

var errNoSecret = errors.New("no secret given")

func (r *receiver) addSecret(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.secrets = append(r.secrets, s)
}

// ServeHTTP answers one delivery.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		http.Error(w, "this receiver accepts webhook deliveries by POST only", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 8<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !pause.For(req.Context(), r.delay) {
		return
	}
	got := received{At: time.Now(), ID: req.Header.Get(signature.HeaderID), Body: body}
	got.Verified = r.verify(req.Header, body)
	if got.Verified == nil || errors.Is(got.Verified, errNoSecret) {
		got.Answered = r.status
	} else {
		got.Answered = http.StatusUnauthorized
	}
	w.WriteHeader(got.Answered)
	r.count(got)
}

func (r *receiver) verify(h http.Header, body []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := errNoSecret
	for _, secret := range r.secrets {
		if err = signature.Verify(secret, h, body, 5*time.Minute, time.Now()); err == nil {
			return nil
		}
	}
	return err
}

// count prints and counts a delivery. After the last one it calls done.
func (r *receiver) count(got received) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.print(got)
	if got.Answered == http.StatusUnauthorized {
		r.unverified++
	}
	if r.left == 0 {
		return
	}
	if r.left--; r.left == 0 {
		r.done()
	}
}

// serve runs until ctx ends, and then waits for the running requests.
func (r *receiver) serve(ctx context.Context, serve func() error, shutdown func(context.Context) error) error {
	failed := make(chan error, 1)
	go func() { failed <- serve() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := shutdown(grace)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unverified > 0 {
		return fmt.Errorf("%d deliveries had no valid signature", r.unverified)
	}
	return err
}

// printer returns a function that prints deliveries.
func printer(out io.Writer) func(received) {
	return func(r received) {
		fmt.Fprintf(out, "%s  %d  %s  %s  %s\n", r.At.Format("15:04:05.000"), r.Answered,
			terminal.Escape(typeOf(r.Body), ""), terminal.Escape(r.ID, ""), verification(r.Verified))
		body, keep := jsontext.Value(r.Body), "\n" // line breaks of the indentation
		if err := body.Indent(jsontext.WithIndentPrefix("    "), jsontext.WithIndent("  ")); err != nil {
			body, keep = r.Body, ""
		}
		fmt.Fprintf(out, "    %s\n", terminal.Escape(string(body), keep))
	}
}

func verification(verified error) string {
	switch {
	case verified == nil:
		return "verified"
	case errors.Is(verified, errNoSecret):
		return "not checked"
	}
	return "REFUSED: " + verified.Error()
}
