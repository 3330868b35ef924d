package console

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/inspect"
	"spendhook/internal/invalid"
	"spendhook/subscribers"
)

// deliveryRow is a delivery with its subscriber, which may be deleted.
type deliveryRow struct {
	delivery.Delivery

	Subscriber *subscribers.Subscriber
	Last       *attempt.Attempt
}

// EventPath returns the address of the event's page.
func (r deliveryRow) EventPath() string { return eventPath(r.Ref.Ref) }

// Tick returns the value of the row's checkbox.
func (r deliveryRow) Tick() string { return r.Company.String() + "/" + r.PublicID() }

type deliveriesPage struct {
	Rows   []deliveryRow
	Next   string
	Dead   bool
	Status string // in the filter; "": any
}

var deliveryStatuses = []string{
	string(delivery.StatusPending), string(delivery.StatusDelivering), string(delivery.StatusRetrying),
	string(delivery.StatusDelivered), string(delivery.StatusDead), string(delivery.StatusCancelled),
}

func (s *server) deliveries(ctx context.Context, v *visit, company *uuid.UUID) error {
	return s.listDeliveries(ctx, v, company, v.choice("status", deliveryStatuses...), false)
}

func (s *server) dead(ctx context.Context, v *visit, company *uuid.UUID) error {
	return s.listDeliveries(ctx, v, company, string(delivery.StatusDead), true)
}

// deliveryFilter reads the filter of a list of deliveries, without the status.
func (v *visit) deliveryFilter(company *uuid.UUID) (f store.Filter, err error) {
	f = store.Filter{
		Company: company, EventTypes: v.list("event"), ErrorClasses: v.list("error"), From: v.since(), Cursor: v.Query("cursor"), Size: listSize,
	}
	f.CodeFrom = v.number("code")
	f.CodeTo = f.CodeFrom
	f.Subscriber, err = v.subscriberFilter(company)
	return f, err
}

// subscriberFilter returns the subscriber in the filter of a list. nil means any.
func (v *visit) subscriberFilter(company *uuid.UUID) (*uuid.UUID, error) {
	text := v.Query("subscriber")
	if text == "" {
		return nil, nil
	}
	id, err := uuid.Parse(text)
	if err != nil || company == nil {
		return nil, errNoPage
	}
	return &id, nil
}

func (s *server) listDeliveries(ctx context.Context, v *visit, company *uuid.UUID, status string, dead bool) error {
	f, err := v.deliveryFilter(company)
	if err != nil {
		return err
	}
	if status != "" {
		f.Statuses = []delivery.Status{delivery.Status(status)}
	}
	found, err := s.opts.Deliveries.List(ctx, f)
	if err != nil {
		return err
	}
	page := deliveriesPage{Next: v.next(found.Next), Dead: dead, Status: status}
	if page.Rows, err = s.deliveryRows(ctx, found.Items); err != nil {
		return err
	}
	title := "Deliveries"
	if dead {
		title = "Dead letters"
	}
	v.show("deliveries", title, page)
	return nil
}

// subscriberLookup returns a function that reads each subscriber once. The function returns nil for
// a deleted subscriber.
func (s *server) subscriberLookup(ctx context.Context) func(company, id uuid.UUID) (*subscribers.Subscriber, error) {
	read := map[[2]uuid.UUID]*subscribers.Subscriber{}
	return func(company, id uuid.UUID) (*subscribers.Subscriber, error) {
		sub, known := read[[2]uuid.UUID{company, id}]
		if known {
			return sub, nil
		}
		switch found, err := s.opts.Subscribers.Get(ctx, company, id); {
		case err == nil:
			sub = &found
		case unavailable(err):
			return nil, err
		}
		read[[2]uuid.UUID{company, id}] = sub
		return sub, nil
	}
}

// deliveryRows adds the subscribers to deliveries.
func (s *server) deliveryRows(ctx context.Context, items []delivery.Delivery) ([]deliveryRow, error) {
	subscriberOf := s.subscriberLookup(ctx)
	rows := make([]deliveryRow, len(items))
	for i, d := range items {
		sub, err := subscriberOf(d.Company, d.Subscriber)
		if err != nil {
			return nil, err
		}
		rows[i] = deliveryRow{Delivery: d, Subscriber: sub}
		if n := len(d.Attempts); n > 0 {
			rows[i].Last = &d.Attempts[n-1]
		}
	}
	return rows, nil
}

type deliveryPage struct {
	deliveryRow

	Sent     *inspect.Sent // the request; nil if it cannot be built any more
	Attempts []attemptRow
	Checked  *check
}

// check is the result of a signature check.
type check struct {
	Timestamp, Signature string
	Matches              bool
}

func (s *server) delivery(ctx context.Context, v *visit, company uuid.UUID) error {
	return s.showDelivery(ctx, v, company, nil)
}

func (s *server) showDelivery(ctx context.Context, v *visit, company uuid.UUID, checked *check) error {
	found, err := s.opts.Deliveries.Delivery(ctx, company, v.r.PathValue("id"))
	if err != nil {
		return err
	}
	rows, err := s.deliveryRows(ctx, []delivery.Delivery{found})
	if err != nil {
		return err
	}
	page := deliveryPage{deliveryRow: rows[0], Checked: checked}
	switch sent, err := s.opts.Inspector.Sent(ctx, company, found.PublicID()); {
	case err == nil:
		page.Sent = &sent
	case unavailable(err):
		return err
	}
	for _, a := range slices.Backward(found.Attempts) {
		page.Attempts = append(page.Attempts, newAttemptRow(found.ID, a, rows[0].Subscriber))
	}
	v.show("delivery", "Delivery of "+found.EventType, &page) // its methods need an address
	return nil
}

// Curl returns a curl command that sends the same request as the attempts, without a signature.
func (p *deliveryPage) Curl() string {
	if p.Sent == nil {
		return ""
	}
	headers := []string{"Content-Type: " + p.Sent.ContentType, "webhook-id: " + p.ID}
	if p.Sent.Sequence > 0 {
		headers = append(headers, "webhook-sequence: "+strconv.FormatInt(p.Sent.Sequence, 10))
	}
	if p.Sent.Previous > 0 {
		headers = append(headers, "webhook-previous: "+strconv.FormatInt(p.Sent.Previous, 10))
	}
	return curl(shellQuote(p.Sent.URL), headers, p.ID, p.Sent.Body)
}

// curl returns a curl command that sends a body to a quoted URL. For a large body the command reads
// the downloaded file.
func curl(url string, headers []string, event string, body []byte) string {
	data := "@" + event + ".json"
	if len(body) <= 4<<10 {
		data = string(body)
	}
	parts := []string{"curl -i -X POST " + url}
	for _, h := range headers {
		parts = append(parts, "-H "+shellQuote(h))
	}
	return strings.Join(append(parts, "--data-binary "+shellQuote(data)), " \\\n  ")
}

// shellQuote quotes a text as one word of a shell command.
func shellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// deliveryBody downloads the body that the attempts send.
func (s *server) deliveryBody(ctx context.Context, v *visit, company uuid.UUID) error {
	if !v.May(readEvents) {
		return errForbidden
	}
	sent, err := s.opts.Inspector.Sent(ctx, company, v.r.PathValue("id"))
	if err != nil {
		return err
	}
	v.download(sent.EventID+".json", sent.Body)
	return nil
}

// download answers with a file that the browser saves and does not display.
func (v *visit) download(name string, body []byte) {
	h := v.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = v.w.Write(body)
}

// verify checks a signature that a receiver got, and shows the result.
func (s *server) verify(ctx context.Context, v *visit, company uuid.UUID) error {
	c := check{Timestamp: strings.TrimSpace(v.r.PostFormValue("timestamp")), Signature: strings.TrimSpace(v.r.PostFormValue("signature"))}
	at, err := strconv.ParseInt(c.Timestamp, 10, 64)
	if err != nil || len(c.Signature) > 4<<10 {
		var problems invalid.Error
		problems.Add("webhook-timestamp", "INVALID", "must be the number that the receiver got in this header")
		return problems.OrNil()
	}
	if c.Matches, err = s.opts.Inspector.VerifySignature(ctx, company, v.r.PathValue("id"), at, c.Signature); err != nil {
		return err
	}
	return s.showDelivery(ctx, v, company, &c)
}
