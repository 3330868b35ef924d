package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/api/client"
	"spendhook/cmd/spendhook/remote"
	"spendhook/dispatcher/challenge"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/internal/pause"
	"spendhook/internal/terminal"
)

type listenCmd struct {
	remote.Connection

	ForwardTo  string     `placeholder:"URL" xor:"keys,public,delay" help:"Forward the feed of --subscriber, or of a new one with --subscribe, to this address, instead of listening. Works behind a firewall."`
	Subscriber *uuid.UUID `predictor:"subscriber" xor:"subscribe" help:"With --forward-to: UUID of the subscriber whose events are forwarded."`
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
	Signature  []string      `help:"With --subscribe: how deliveries are signed: standard, http-message (RFC 9421); may repeat."`
	KeysURL    string        `placeholder:"URL" xor:"subscribe,keys" help:"Verify HTTP message signatures (RFC 9421) with the keys that the daemon publishes at /.well-known/webhook-keys/{companyUuid}."`
	PublicURL  string        `xor:"public" help:"With --subscribe or --keys-url: the address at which the daemon reaches this receiver (default: the listen address)."`
}

// Validate checks the status and the scheme of --forward-to.
func (c *listenCmd) Validate() error {
	if c.Status < 200 || c.Status > 599 {
		return errors.New("--status must be 200 to 599")
	}
	if c.ForwardTo != "" && !strings.HasPrefix(c.ForwardTo, "http://") && !strings.HasPrefix(c.ForwardTo, "https://") {
		return errors.New("--forward-to must begin with http:// or https://")
	}
	switch {
	case c.ForwardTo != "" && c.Subscriber == nil && !c.Subscribe:
		return errors.New("--forward-to needs --subscriber or --subscribe")
	case c.ForwardTo == "" && c.Subscriber != nil:
		return errors.New("--subscriber needs --forward-to")
	case len(c.Signature) > 0 && (!c.Subscribe || c.ForwardTo != ""):
		return errors.New("--signature needs --subscribe, and is not for --forward-to, whose signatures are those of Standard Webhooks")
	}
	return nil
}

// Run receives or forwards deliveries until it is interrupted or has handled Count of them. It
// fails if a received delivery could not be verified with the secrets and keys.
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
	address = cmp.Or(c.PublicURL, address)
	unsubscribe := func() {}
	switch {
	case c.Subscribe:
		unsubscribe, err = c.subscribe(ctx, r, address, term)
	case c.KeysURL != "":
		r.messages, err = c.messageVerifier(address)
	}
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

// subscribe creates a subscriber for the receiver; unsubscribe deletes it.
func (c *listenCmd) subscribe(ctx context.Context, r *receiver, address string, term *stdio) (unsubscribe func(), err error) {
	api, err := c.Open(term)
	if err != nil {
		return nil, err
	}
	messages, err := c.messageVerifier(address)
	if err != nil {
		return nil, err
	}
	settings := client.SubscriberCreate{Name: "spendhook listen", CallbackURL: address, Events: c.Events}
	if len(c.Signature) > 0 {
		settings.Signatures = &c.Signature
	}
	created, unsubscribe, err := c.create(ctx, api, settings, term)
	if err != nil {
		return nil, err
	}
	id, secret := created.UUID, created.Secret
	if len(c.Signature) == 0 || slices.Contains(c.Signature, byStandard) {
		r.addSecret(secret)
	} else {
		r.secrets = nil
	}
	if slices.Contains(c.Signature, byMessage) {
		messages.KeysURL = strings.TrimRight(c.URL, "/") + "/.well-known/webhook-keys/" + created.CompanyUUID.String()
		r.messages = messages
	}
	if created.Verification != nil { // the receiver answers the challenge once it serves
		go func() {
			if _, err := api.VerifySubscriberWithResponse(ctx, id, &client.VerifySubscriberParams{CompanyUUID: c.CompanyUUID}); err != nil {
				fmt.Fprintf(term.Err, "verify: %v\n", err)
			}
		}()
	}
	return unsubscribe, nil
}

// create creates a subscriber for this command; unsubscribe deletes it.
func (c *listenCmd) create(ctx context.Context, api *client.ClientWithResponses, settings client.SubscriberCreate, term *stdio) (created *client.SubscriberWithSecret, unsubscribe func(), err error) {
	answer, err := api.CreateSubscriberWithResponse(ctx, &client.CreateSubscriberParams{CompanyUUID: c.CompanyUUID}, settings)
	if err != nil {
		return nil, nil, err
	}
	created = answer.JSON201
	fmt.Fprintf(term.Err, "subscribed; the signing secret is %s\n", created.Secret)
	return created, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if _, err := api.DeleteSubscriberWithResponse(ctx, created.UUID, &client.DeleteSubscriberParams{CompanyUUID: c.CompanyUUID}); err != nil {
			fmt.Fprintf(term.Err, "unsubscribe: %v\n", err)
		}
	}, nil
}

// messageVerifier verifies HTTP message signatures to an address, with the keys of --keys-url.
func (c *listenCmd) messageVerifier(address string) (*client.MessageVerifier, error) {
	to, err := url.Parse(address)
	if err != nil {
		return nil, usageError("--public-url: " + err.Error())
	}
	transport, err := c.Transport()
	return &client.MessageVerifier{
		KeysURL: c.KeysURL, Origin: to.Scheme + "://" + to.Host, Client: &http.Client{Transport: transport},
	}, err
}

// The names of the kinds of signatures, as in signatures of a subscriber.
const (
	byStandard = "standard"
	byMessage  = "http-message"
)

// receiver answers deliveries and passes each to print.
type receiver struct {
	delay  time.Duration
	status int // of the answer, unless a signature is wrong
	print  func(received)
	done   context.CancelFunc // called when left reaches 0

	messages *client.MessageVerifier // nil: HTTP message signatures are not checked

	mu         sync.Mutex
	secrets    []string // none: Standard Webhooks is not checked
	left       int      // deliveries until done is called; 0 at the start means no limit
	unverified int      // deliveries that were not verified
}

// received is one delivery as it came in.
type received struct {
	At       time.Time
	ID       string
	Body     []byte
	Valid    []string // kinds of signatures that were checked; none if not Verified
	Verified error    // nil: verified; errNoKey: not checked, for lack of a key
	Answered int
}

var (
	errNoKey        = errors.New("no secret and no keys given")
	errBadSignature = errors.New("no valid signature of Standard Webhooks")
)

func (r *receiver) addSecret(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.secrets = append(r.secrets, s)
}

// ServeHTTP answers one delivery.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		refuseOrAgree(w, req)
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
	got.Valid, got.Verified = r.verify(req, body)
	got.Answered = r.answer(got.Verified)
	text := ""
	if got.Verified == nil {
		text = challenge.Text(body)
	}
	if text != "" { // not a delivery: --status and --count do not concern it
		got.Answered = http.StatusOK
	}
	w.WriteHeader(got.Answered)
	_, _ = io.WriteString(w, text)
	r.note(got, text == "")
}

// refuseOrAgree answers a request that is no delivery: the handshake of CloudEvents by agreeing, to any system.
func refuseOrAgree(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Allow", http.MethodPost)
	origin := req.Header.Get("WebHook-Request-Origin")
	if req.Method != http.MethodOptions || origin == "" {
		http.Error(w, "this receiver accepts webhook deliveries by POST only", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("WebHook-Allowed-Origin", origin)
	w.Header().Set("WebHook-Allowed-Rate", "*")
}

// verify checks the kinds of signatures for which there are keys. All of them must be valid.
func (r *receiver) verify(req *http.Request, body []byte) (valid []string, err error) {
	r.mu.Lock()
	secrets := slices.Clone(r.secrets)
	r.mu.Unlock()
	if len(secrets) > 0 {
		for _, secret := range secrets {
			if err = signature.Verify(secret, req.Header, body, 5*time.Minute, time.Now()); err == nil {
				break
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errBadSignature, err)
		}
		valid = append(valid, byStandard)
	}
	if r.messages != nil {
		if err := r.messages.Verify(req, body); err != nil {
			return nil, err
		}
		valid = append(valid, byMessage)
	}
	if len(valid) == 0 {
		return nil, errNoKey
	}
	return valid, nil
}

// answer is the status for a delivery. If the published keys cannot be read, the daemon is to send it again.
func (r *receiver) answer(verified error) int {
	switch {
	case verified == nil, errors.Is(verified, errNoKey):
		return r.status
	case errors.Is(verified, errBadSignature), errors.Is(verified, client.ErrInvalidMessage):
		return http.StatusUnauthorized
	}
	return http.StatusServiceUnavailable
}

// note prints a request, and counts a delivery. After the last one it calls done.
func (r *receiver) note(got received, delivery bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.print(got)
	if got.Verified != nil && !errors.Is(got.Verified, errNoKey) {
		r.unverified++
	}
	if r.left == 0 || !delivery {
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
		return fmt.Errorf("%d deliveries were not verified", r.unverified)
	}
	return err
}

// printer returns a function that prints deliveries.
func printer(out io.Writer) func(received) {
	return func(r received) {
		fmt.Fprintf(out, "%s  %d  %s  %s  %s\n", r.At.Format("15:04:05.000"), r.Answered,
			terminal.Escape(typeOf(r.Body), ""), terminal.Escape(r.ID, ""), verification(r))
		body, keep := jsontext.Value(r.Body), "\n" // line breaks of the indentation
		if err := body.Indent(jsontext.WithIndentPrefix("    "), jsontext.WithIndent("  ")); err != nil {
			body, keep = r.Body, ""
		}
		fmt.Fprintf(out, "    %s\n", terminal.Escape(string(body), keep))
	}
}

func verification(r received) string {
	switch {
	case r.Verified == nil:
		return "verified (" + strings.Join(r.Valid, ", ") + ")"
	case errors.Is(r.Verified, errNoKey):
		return "not checked"
	}
	return "REFUSED: " + r.Verified.Error()
}
